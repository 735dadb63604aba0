"""Reap what process 1 of a container adopts.

Whoever runs as process 1 becomes the parent of every process whose own parent has
ended, and has to reap it; nobody else will, and each zombie holds a pid for ever.
"""

from __future__ import annotations

import os
import time
from multiprocessing import process, resource_tracker

from staging.process import descendants
from staging.process import pidfd as _pidfd
from staging.process.guard import guard

# A dead leader of a session of its own may be a child that this process has started and
# has not asked about yet. After this long (seconds) it is taken for an adopted one.
_UNCLAIMED_AFTER = 10.0

_first_seen: dict[tuple[int, int], float] = {}


def reap_adopted() -> int:
    """Reap adopted processes that have ended, if this is process 1.

    Children that this process has started itself are left to those who started them:
    they are known, or belong to this process's session.

    Returns
    -------
    int
        How many were reaped.
    """
    if os.getpid() != 1:
        return 0
    own_session = os.getsid(0)
    known = _known_children()
    now = time.monotonic()
    reaped = 0
    zombies = {}
    for stat in descendants.list_processes().values():
        if stat.ppid != 1 or not stat.is_dead or stat.pid in known or stat.sid == own_session:
            continue
        zombies[stat.key] = _first_seen.get(stat.key, now)
        if stat.sid == stat.pid and now - zombies[stat.key] < _UNCLAIMED_AFTER:
            continue
        try:
            fd = _pidfd.open_pidfd(stat.pid)
        except OSError:
            continue
        try:
            _pidfd.reap(fd)
        finally:
            os.close(fd)
        del zombies[stat.key]
        reaped += 1
    _first_seen.clear()
    _first_seen.update(zombies)
    return reaped


def _known_children() -> set[int]:
    known = guard().pids()
    for child in list(process._children):  # type: ignore[attr-defined]
        popen = child._popen
        if popen is not None:
            known.add(popen.pid)
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    if tracker is not None:
        known.add(tracker)
    return known
