"""Log lines of a worker: which process wrote them, and no secret in any of them.

Several processes write to one terminal or file. Each line says whose it is, and each is
handed to the operating system whole, so that lines of different processes do not mix.

Everything here runs once, at a worker's start, on its main thread; the streams and the
filter are then used from any thread.
"""

from __future__ import annotations

import json
import logging
import logging.config
import os
import re
import sys
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Any, TextIO

from staging.process.redaction import MASK, is_secret

__all__ = ["PrefixedStream", "RedactQueries", "configure_logging", "prefix_streams"]

_SERVER_LOGGERS = ("uvicorn.access", "uvicorn.error", "uvicorn.asgi")

_QUERY_PAIR = re.compile(r"(?P<name>[?&;][^=&;\s\"'#?]+)=(?P<value>[^&;\s\"'#]*)")

# Secret in a query, beside what is secret anywhere: keys and signatures of signed URLs.
_SECRET_IN_QUERIES = ("key", "signature")


class PrefixedStream:
    """A text stream that begins each line with a prefix.

    A line reaches the underlying stream in one call once it is complete, or when the
    stream is flushed. Everything but writing is the underlying stream's.
    """

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._partial = ""  # GUARDED BY _lock; an incomplete line, without its prefix
        self._within_line = False  # GUARDED BY _lock; part of the line is out already
        self._lock = threading.RLock()  # a signal handler may write, too

    def write(self, text: str) -> int:
        """Write `text`; an incomplete last line waits for its end or for a flush."""
        with self._lock:
            whole, newline, self._partial = (self._partial + text).rpartition("\n")
            if newline:
                self._emit(whole + newline)
                self._within_line = False
                self._stream.flush()
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write each of `lines`."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand on what there is, complete or not."""
        with self._lock:
            if self._partial:
                partial, self._partial = self._partial, ""
                self._emit(partial)
                self._within_line = True
            self._stream.flush()

    def _emit(self, text: str) -> None:
        first = "" if self._within_line else self._prefix
        body = text[:-1].replace("\n", "\n" + self._prefix) + text[-1:]
        self._stream.write(first + body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prefix_streams(name: str) -> None:
    """Begin each line that this process prints or logs with ``[NAME PID]``.

    Called before logging is configured: handlers hold on to the stream that they were
    made with.
    """
    prefix = f"[{name} {os.getpid()}] "
    for stream in ("stdout", "stderr"):
        current = getattr(sys, stream)
        if current is not None and not isinstance(current, PrefixedStream):
            setattr(sys, stream, PrefixedStream(current, prefix))


def _redact_pair(pair: re.Match[str]) -> str:
    # A name may be percent-encoded in the log line, and is still the same to a server.
    name = urllib.parse.unquote_plus(pair["name"]).lower()
    if is_secret(name) or name.endswith(_SECRET_IN_QUERIES):
        return f"{pair['name']}={MASK}"
    return pair[0]


def redact_queries(text: str) -> str:
    """Replace the values of secret parameters of a URL's query in `text` by ``***``."""
    return _QUERY_PAIR.sub(_redact_pair, text)


class RedactQueries(logging.Filter):
    """Keep secrets of a request out of the server's own log lines.

    uvicorn logs a request's path with its query, and at its trace level the whole scope,
    whose state holds whatever the application put there.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record's arguments; every record is kept."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(self._redact, record.args))
        elif isinstance(record.args, Mapping):  # a mapping alone is not in a tuple
            record.args = self._redact(record.args)
        return True

    def _redact(self, value: Any) -> Any:
        if isinstance(value, str):
            return redact_queries(value)
        if isinstance(value, Mapping) and "type" in value:  # an ASGI scope
            redacted = dict(value)
            if "query_string" in value:
                query = bytes(value["query_string"]).decode("latin-1")
                redacted["query_string"] = redact_queries("?" + query)[1:]
            if "state" in value:
                redacted["state"] = "<...>"
            return redacted
        return value


def _default_config(level: int | str) -> dict[str, Any]:
    handlers = ["stderr"]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {"format": "%(levelname)s %(asctime)s %(name)s: %(message)s"},
        },
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "line",
                "stream": "ext://sys.stderr",
            }
        },
        "loggers": {
            "staging": {"handlers": handlers, "level": level, "propagate": False},
            "uvicorn": {"handlers": handlers, "level": level, "propagate": False},
            "uvicorn.asgi": {"level": level},
        },
        "root": {"handlers": handlers, "level": "WARNING"},
    }


def configure_logging(
    config: Mapping[str, Any] | str | os.PathLike[str] | None, *, level: int | str = "INFO"
) -> None:
    """Configure logging as `config` says, and redact the server's log lines.

    Parameters
    ----------
    config
        A dictionary for `logging.config.dictConfig`, or the path of a JSON file that
        holds one. None logs to stderr.
    level
        Level of the server's and this package's own loggers where `config` is None.

    Raises
    ------
    ValueError
        The file cannot be read, is no JSON object, or the configuration is wrong.
    """
    if config is None:
        if isinstance(level, str):
            level = {"TRACE": 5}.get(level.upper(), level.upper())
        config = _default_config(level)
    elif not isinstance(config, Mapping):
        path = os.fspath(config)
        try:
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"logging_config={path!r}: cannot be read as JSON: {error}; give the path of a "
                "JSON file, or a dictionary for logging.config.dictConfig"
            ) from error
        if not isinstance(config, dict):
            raise ValueError(f"logging_config={path!r}: holds no JSON object")
    try:
        logging.config.dictConfig(dict(config))
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        raise ValueError(f"logging_config: {error}") from error
    for name in _SERVER_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(known, RedactQueries) for known in logger.filters):
            logger.addFilter(RedactQueries())
