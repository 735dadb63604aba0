"""``python faulty_serve.py NAME NTH ERRNO ARGUMENTS…``: `serve`, of whose calls one fails.

NAME is a function of a module, such as ``os.pipe``; its NTH call raises OSError with ERRNO,
or MemoryError for 0. NTH 0 lets all succeed, and prints how many there were.
"""

from __future__ import annotations

import importlib
import os
import sys


def main() -> int:
    name, nth, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # Loaded first: what a module looks up when it is imported is the real function.
    from staging.process import (  # noqa: F401
        adopted,
        api_servers,
        engine_host,
        serve,
        serve_worker,
        status_board,
        wait,
    )

    module_name, _, attribute = name.rpartition(".")
    module = importlib.import_module(module_name)
    real = getattr(module, attribute)
    calls = 0

    def faulty(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(number, os.strerror(number)) if number else MemoryError
        return real(*args, **kwargs)

    setattr(module, attribute, faulty)
    try:
        return serve.main(sys.argv[4:])
    finally:
        setattr(module, attribute, real)
        if not nth:
            os.write(2, f"CALLS {calls}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
