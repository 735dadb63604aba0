"""Learn the exit code of a process object that others may be asking, too."""

from __future__ import annotations

import time
from typing import Any

from staging.process import pidfd as _pidfd

# Between a reap by another thread and the moment when it has noted the code (seconds).
_NOTING = 0.1
_PAUSE = 0.002


def exit_code_of(proc: Any, pidfd: int = -1) -> int | None:
    """Return the exit code of a process that has ended, and have it reaped.

    `multiprocessing` says None both while a process runs and when another thread has
    just reaped it and not yet noted the code; so None is asked for again for 100 ms.

    Parameters
    ----------
    proc
        Anything with ``exitcode``.
    pidfd
        Its pidfd, or -1.

    Returns
    -------
    int or None
        None if it cannot be known, also because the object has been closed.
    """
    code = None
    if pidfd >= 0:
        try:
            code = _pidfd.exit_code(pidfd)
        except (ChildProcessError, OSError):
            code = None  # reaped, or no pidfd
    deadline = time.monotonic() + _NOTING
    while True:
        try:
            told = proc.exitcode  # reaps it
        except Exception:
            return code
        if told is not None:
            return int(told)
        # Ours know for sure.
        if code is not None or hasattr(proc, "kill_descendants") or time.monotonic() > deadline:
            return code
        time.sleep(_PAUSE)
