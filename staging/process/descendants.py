"""Find a child's descendants, whatever they did to hide, and kill them.

A descendant leaves the tree of parents when its parent ends before it (init adopts
it), and leaves the child's session when it calls ``setsid``. Three things are looked
at, and one is enough:

* the parents, up to a child that still exists;
* the process group and the session, which a child leads from ``exec`` on;
* a mark in the environment, which ``fork`` and ``exec`` hand on: each child is
  started with ``STAGING_LINEAGE`` naming its supervisor and itself.

A process that has cleared its environment, has left the session *and* has lost its
parents is not found. Nobody is signalled by number: a pidfd is opened, and the
process behind it is compared with the one that was found. Where no descriptor is left for
that, not even in the reserve, it is signalled by its number after the same comparison:
better than to leave it.

This module is imported by the warden, which must start quickly: standard library
only, and little of it. It holds no state; any thread may call it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from staging.process import pidfd as _pidfd
from staging.process import reserve

LINEAGE = "STAGING_LINEAGE"

# setproctitle writes titles over the memory that /proc/PID/environ shows, unless this
# is set; the mark could then not be read from a process that forked without exec.
KEEP_ENVIRON = "SPT_NOENV"

_LINEAGE_KEY = os.fsencode(LINEAGE) + b"="

# Processes that end by themselves once those they serve are gone, and still have
# things to put away then: multiprocessing's resource tracker unlinks shared memory and
# semaphores, and a child's own warden unlinks the child's ipc files.
_SPARED = (b"multiprocessing.resource_tracker import main", b"staging.process.warden import main")

_DEAD_STATES = frozenset("ZXx")

# How long a process may take from fork to exec, in seconds: it only has to be scheduled.
_EXEC_PATIENCE = 0.25

# How long it may be in the middle of exec. That always ends, on a busy machine late; a process
# that is given up on before could not be known by its mark.
_IN_EXEC_PATIENCE = 5.0

# A process that was forked and has not called exec; PF_FORKNOEXEC in linux/sched.h.
_FORKED_NO_EXEC = 0x40

_Key = tuple[int, int]


class ProcessStat(NamedTuple):
    """One line of ``/proc/PID/stat``, as far as it is needed here; proc_pid_stat(5)."""

    pid: int
    state: str
    ppid: int
    pgid: int
    sid: int
    start: int
    """When it started, in clock ticks since boot: with the pid, it names a process."""
    flags: int = 0

    @property
    def key(self) -> _Key:
        """What names this process and no later one."""
        return (self.pid, self.start)

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and only waits to be reaped."""
        return self.state in _DEAD_STATES


def new_mark() -> str:
    """Return a mark for ``STAGING_LINEAGE`` that no other process carries."""
    return os.urandom(8).hex()


def marked_environment(environment: Mapping[str, str], marks: Iterable[str]) -> dict[str, str]:
    """Return a copy of `environment` whose lineage is continued with `marks`."""
    marked = dict(environment)
    inherited = [mark for mark in marked.get(LINEAGE, "").split(":") if mark]
    marked[LINEAGE] = ":".join([*inherited, *marks])
    marked.setdefault(KEEP_ENVIRON, "1")
    return marked


def read_stat(pid: int) -> ProcessStat | None:
    """Return the process's line, or None when there is no such process."""
    data = _read(f"/proc/{pid}/stat")
    if data is None:
        return None
    # The command's name stands in parentheses and may contain any character.
    fields = data[data.rindex(b")") + 2 :].split()
    return ProcessStat(
        pid,
        fields[0].decode(),
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        int(fields[19]),
        int(fields[6]),
    )


def read_marks(pid: int) -> frozenset[str]:
    """Return the marks that process `pid` inherited; none where they cannot be read."""
    data = _read(f"/proc/{pid}/environ")
    deadline = time.monotonic() + _IN_EXEC_PATIENCE
    while data == b"" and _is_in_exec(pid) and time.monotonic() < deadline:
        time.sleep(0.001)
        data = _read(f"/proc/{pid}/environ")
    if not data:
        return frozenset()
    at = 0 if data.startswith(_LINEAGE_KEY) else data.find(b"\0" + _LINEAGE_KEY) + 1
    if at == 0 and not data.startswith(_LINEAGE_KEY):
        return frozenset()
    begin = at + len(_LINEAGE_KEY)
    end = data.find(b"\0", begin)
    value = data[begin : end if end >= 0 else len(data)]
    return frozenset(value.decode("ascii", "replace").split(":"))


def _is_in_exec(pid: int) -> bool:
    # Its new image has no arguments and no environment yet, while vfork has let the parent
    # go already. A zombie or a thread of the kernel has no executable.
    if read_command(pid):
        return False
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return True


def read_command(pid: int) -> bytes:
    """Return the command line, its arguments ended by NUL; empty where there is none."""
    return _read(f"/proc/{pid}/cmdline") or b""


def list_processes() -> dict[int, ProcessStat]:
    """Return every process that ``/proc`` shows, by pid."""
    found = {}
    for name in reserve.opened(lambda: os.listdir("/proc")):
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None:
                found[stat.pid] = stat
    return found


def find_family(
    marks: Collection[str] = (),
    *,
    groups: Collection[int] = (),
    roots: Collection[int] = (),
    since: int = 0,
) -> list[ProcessStat]:
    """Return the living processes that belong to a child, and their descendants.

    Parameters
    ----------
    marks
        Marks, one of which a process of the family has in its environment.
    groups
        Process groups and sessions that belong to the family alone. Their numbers must
        not be free: the leader is not reaped yet, or a member is known to live.
    roots
        Processes whose descendants belong to the family; they are not returned
        themselves unless they belong to it for another reason.
    since
        When the oldest of the family started, in clock ticks: environments of older
        processes are not read.

    Returns
    -------
    list of ProcessStat
        Without the caller, process 1, zombies and those that end by themselves
        (resource trackers and wardens).
    """
    return _look_for(marks, groups, roots, since)[0]


def _look_for(
    marks: Collection[str], groups: Collection[int], roots: Collection[int], since: int
) -> tuple[list[ProcessStat], list[ProcessStat]]:
    """Return the living family, apart from it those who are spared; see `find_family`."""
    wanted = frozenset(marks)
    processes = list_processes()
    children: dict[int, list[int]] = {}
    for stat in processes.values():
        children.setdefault(stat.ppid, []).append(stat.pid)

    never = {os.getpid(), 1}
    family: dict[int, ProcessStat] = {}
    heads = list(roots)
    for stat in processes.values():
        if stat.pid in never:
            continue
        if (
            stat.pgid in groups
            or stat.sid in groups
            or (wanted and stat.start >= since and not wanted.isdisjoint(read_marks(stat.pid)))
        ):
            family[stat.pid] = stat
            heads.append(stat.pid)
    while heads:
        for pid in children.get(heads.pop(), ()):
            if pid not in family and pid not in never:
                family[pid] = processes[pid]
                heads.append(pid)
    living = [stat for stat in family.values() if not stat.is_dead]
    spared = [stat for stat in living if _is_spared(stat.pid)]
    return [stat for stat in living if stat not in spared], spared


def kill_family(
    marks: Collection[str] = (),
    *,
    groups: Collection[int] = (),
    roots: Collection[int] = (),
    since: int = 0,
    spare: Collection[int] = (),
    timeout: float = 0.1,
) -> list[ProcessStat]:
    """SIGKILL a child's descendants until none appears any more.

    Parameters
    ----------
    marks, groups, roots, since
        As `find_family` takes them.
    spare
        Pids that are left alone.
    timeout
        Seconds to wait for the end of those that the caller has adopted (it is
        process 1, or a subreaper), which are then reaped. The others are not waited
        for: they have been sent SIGKILL, and init reaps them.

    Returns
    -------
    list of ProcessStat
        Those that were sent SIGKILL.
    """
    stopped: dict[_Key, ProcessStat] = {}
    killed: set[_Key] = set()
    deadline = time.monotonic() + 2 * _EXEC_PATIENCE
    try:
        # A process may fork between a listing and its end, and what it forked may be
        # findable by its parent alone. So all are stopped until nothing new appears,
        # and then killed. One that forks and ends all the time may be in no listing at
        # all, but does not get away from a signal to its group.
        unsignalled = set(groups)
        anything_new = True
        while anything_new:
            anything_new = False
            while True:
                family, spared = _look_for(marks, groups, roots, since)
                fresh = [s for s in family if s.key not in stopped and s.pid not in spare]
                if not fresh:
                    break
                # One that is about to be spared must come to its exec to be known as such.
                unknown = [s for s in fresh if time.monotonic() < deadline and _may_exec(s)]
                if unknown:
                    time.sleep(0.001)
                for stat in fresh:
                    # Asked again: it may have come to its exec since it was listed.
                    if stat not in unknown and not _is_spared(stat.pid):
                        anything_new = True
                        stopped[stat.key] = stat  # first: an interrupt may come in between
                        stop(stat)
            keep = {s.pgid for s in spared} | {s.pgid for s in family if s.pid in spare}
            for group in unsignalled - keep:
                _kill_group(group)
            unsignalled &= keep
            _kill_all(stopped, killed)
        _reap_adopted(killed, timeout)
    finally:
        _kill_all(stopped, killed)  # nothing stays stopped when this is interrupted
        reserve.refill()
    return [stat for key, stat in stopped.items() if key in killed]


def _may_exec(stat: ProcessStat) -> bool:
    """Return whether it was forked a moment ago, or is in the middle of exec."""
    if stat.flags & _FORKED_NO_EXEC:
        ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
        return ticks - stat.start < _EXEC_PATIENCE * os.sysconf("SC_CLK_TCK")
    return _is_in_exec(stat.pid)


def _kill_all(family: Mapping[_Key, ProcessStat], killed: set[_Key]) -> None:
    """SIGKILL those of the family that were not yet."""
    for key, stat in family.items():
        if key not in killed:
            handle = kill(stat)
            if handle is not None:
                killed.add(key)
                if handle >= 0:
                    os.close(handle)


def _kill_group(group: int) -> None:
    if group != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def kill(found: ProcessStat) -> int | None:
    """SIGKILL the process that was found.

    Returns
    -------
    int or None
        Its pidfd, for the caller to close, or -1 where no descriptor is left; None when it
        has gone, or cannot be signalled.
    """
    return _signal(found, signal.SIGKILL)


def stop(found: ProcessStat) -> None:
    """SIGSTOP the process that was found, so that it forks no more until it is killed."""
    handle = _signal(found, signal.SIGSTOP)
    if handle is not None and handle >= 0:
        os.close(handle)


def _signal(found: ProcessStat, signum: int) -> int | None:
    try:
        handle = reserve.opened(lambda: _pidfd.open_pidfd(found.pid))
    except OSError as error:
        return _signal_by_number(found, signum) if error.errno in reserve.EXHAUSTED else None
    try:
        # The number may have been given to another process since it was listed.
        now = read_stat(found.pid)
        if now is not None and now.start == found.start:
            _pidfd.send_signal(handle, signum)
            return handle
    except PermissionError:
        pass  # it has become another user's
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _signal_by_number(found: ProcessStat, signum: int) -> int | None:
    with contextlib.suppress(OSError):
        now = read_stat(found.pid)
        if now is not None and now.start == found.start:
            os.kill(found.pid, signum)
            return -1
    return None


def _reap_adopted(killed: Iterable[_Key], timeout: float) -> None:
    """Reap those that are the caller's own children, by number: that is theirs until then."""
    deadline = time.monotonic() + timeout
    adopted = [pid for pid, _ in killed if _pidfd.is_own_child_number(pid)]
    for pid in adopted:
        while not _pidfd.reap_number(pid) and time.monotonic() < deadline:
            time.sleep(0.001)


def _is_spared(pid: int) -> bool:
    command = read_command(pid)
    return any(mark in command for mark in _SPARED)


def _read(path: str) -> bytes | None:
    """Return the file's bytes; None when it is gone or may not be read.

    Raises
    ------
    OSError
        Neither is so: there is no descriptor or no memory left for it.
    """
    try:
        fd = reserve.opened(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in reserve.EXHAUSTED:
            raise
        return None
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None  # it ended while it was read
    finally:
        os.close(fd)
