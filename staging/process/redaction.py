"""Keep secrets out of log lines.

What is masked is masked by its key, at any depth; a value is not looked at, except
for JSON inside a string. Note that a secret on a command line can be read by every
user of the machine while the process runs, whatever the log says.
"""

from __future__ import annotations

import json
from typing import Any

MASK = "***"

_SECRET_ENDINGS = ("token", "secret", "password", "passwd", "api_key", "watermark_config")


def is_secret(key: object) -> bool:
    """Return whether a value under this key must not be logged.

    True for a key that is, or ends in, ``token``, ``secret``, ``password``, ``passwd``,
    ``api_key`` or ``watermark_config``, in any case and with dashes or underscores.
    """
    return str(key).lower().replace("-", "_").endswith(_SECRET_ENDINGS)


def redacted(value: Any) -> Any:
    """Return a copy of `value` in which every secret is ``"***"``.

    Parameters
    ----------
    value
        Dictionaries, lists, tuples and plain values, as JSON has them.
    """
    if isinstance(value, dict):
        return {k: MASK if is_secret(k) else redacted(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            inner = json.loads(value)
        except ValueError:
            return value
        safe = redacted(inner)
        return value if safe == inner else json.dumps(safe)
    return value
