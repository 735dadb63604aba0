"""The warden: a process that puts a supervisor's house in order when the supervisor dies.

Whatever ends a supervisor (an exit, a crash, SIGKILL, the OOM killer), its children
must not live on. A child cannot see to that itself: it may be stopped, busy under
the GIL, or ignorant of the supervisor, and a pipe that tells of a parent's death
stays open in every process that was forked meanwhile. So a small process of its own
session holds a pidfd of the supervisor, and is told each child and each ipc path.
When the supervisor is gone it SIGKILLs the children, their groups and their
descendants, removes the paths that still are the same files, and exits.

This module runs in the warden, and needs little of the standard library;
`staging.process.guard` is the supervisor's side. Packets go over a socket pair, their
fields parted by NUL bytes. The warden never answers, so nothing waits for it.

``child MARK PID START``  a child, with its pidfd attached
``gone MARK``             the child has been reaped
``path DEV INO PATH``     a socket file, or a folder, to remove; ``0 0`` for a socket file
                          that is about to be made
``drop PATH``             it has been removed
``bye``                   nothing is left to guard
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from stat import S_ISSOCK
from typing import NamedTuple

from staging.process import descendants, reserve
from staging.process import pidfd as _pidfd

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""What the warden ignores: it ends with the supervisor, not with the terminal."""

# After the supervisor's death the processes are listed again for this long (seconds):
# a child that was being forked at that moment shows its mark only after its exec.
_WATCH_AFTER_DEATH = 0.2
_PAUSE_BETWEEN_LISTINGS = 0.02

# The kernel closes a dying process's files a moment before its pidfd tells of its end.
_CLOSING_BEFORE_DEATH = 1.0


class Child(NamedTuple):
    """A child as the warden is told of it."""

    pid: int
    start: int
    """In clock ticks since boot, as `descendants.ProcessStat` has it."""
    pidfd: int


def main(socket_fd: int, supervisor_pidfd: int, supervisor_pid: int, mark: str) -> None:
    """Guard the children of a supervisor until it dies or says ``bye``; never return.

    Parameters
    ----------
    socket_fd
        The warden's end of the socket pair.
    supervisor_pidfd, supervisor_pid
        The supervisor. The pid only names files.
    mark
        The mark that every child of the supervisor carries.
    """
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.chdir("/")
    household = Household(mark)
    reserve.hold()
    channel = socket.socket(fileno=socket_fd)
    watched = [channel.fileno(), supervisor_pidfd]
    while True:
        ready = _pidfd.wait_any(watched, None)
        if channel.fileno() in ready:
            packet, fds, _, _ = socket.recv_fds(channel, 4096, 1)
            if packet == b"bye":
                os._exit(0)
            if packet:
                household.learn(packet, fds)
                continue
            # The supervisor dies, or it has lost a warden that it was just starting.
            watched.remove(channel.fileno())
            if household.is_empty and not _pidfd.wait_any(watched, _CLOSING_BEFORE_DEATH):
                os._exit(0)
        elif ready:  # and every packet has been read
            break
    killed = household.clear(supervisor_pid)
    if killed:
        pids = ", ".join(str(pid) for pid in sorted(killed))
        with contextlib.suppress(OSError):
            os.write(2, f"staging: process {supervisor_pid} is gone; ended {pids}\n".encode())
    os._exit(0)


class Household:
    """What the warden knows of one supervisor. Used by one thread."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._children: dict[bytes, Child] = {}
        self._paths: dict[bytes, tuple[int, int]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether neither a child nor a path is known."""
        return not self._children and not self._paths

    def learn(self, packet: bytes, fds: list[int]) -> None:
        """Take in one packet."""
        word, _, rest = packet.partition(b"\0")
        if word == b"child":
            mark, pid, start = rest.split(b"\0")
            # Without a descriptor where none was left for it; unix(7).
            self._children[mark] = Child(int(pid), int(start), fds[0] if fds else -1)
        elif word == b"gone":
            child = self._children.pop(rest, None)
            if child is not None and child.pidfd >= 0:
                os.close(child.pidfd)
        elif word == b"path":
            device, inode, path = rest.split(b"\0", 2)
            self._paths[path] = (int(device), int(inode))
        elif word == b"drop":
            self._paths.pop(rest, None)

    def clear(self, supervisor_pid: int) -> set[int]:
        """Kill every process of the dead supervisor and remove its files.

        Returns
        -------
        set of int
            The pids of those that were killed.
        """
        killed: set[int] = set()
        begin = time.monotonic()
        while True:
            killed |= self._kill()
            self._remove_paths()
            if time.monotonic() - begin >= _WATCH_AFTER_DEATH:
                break
            time.sleep(_PAUSE_BETWEEN_LISTINGS)
        _remove_arenas(supervisor_pid)
        return killed

    def _kill(self) -> set[int]:
        # The supervisor had not reaped these children, so their numbers were theirs
        # when it died. Since then init may have reaped one, and its number may have
        # been given away: its start would tell.
        roots = []
        for child in self._children.values():
            stat = descendants.read_stat(child.pid)
            if stat is None or stat.start == child.start:
                roots.append(child.pid)
        # One listing sees a child and all its descendants; after the child's end,
        # those of other sessions are descendants of nobody.
        killed = descendants.kill_family([self._mark], groups=roots, roots=roots, timeout=0)
        for child in self._children.values():
            if child.pidfd >= 0:
                _pidfd.send_signal(child.pidfd, signal.SIGKILL)
        return {stat.pid for stat in killed}

    def _remove_paths(self) -> None:
        # Files before the folders that they are in.
        for path in sorted(self._paths, key=len, reverse=True):
            device, inode = self._paths[path]
            if inode:
                remove_path(os.fsdecode(path), device, inode)
            else:
                remove_stale_socket(os.fsdecode(path))


def remove_path(path: str, device: int, inode: int) -> bool:
    """Remove a file, or an empty folder, if it is still the same one.

    Returns
    -------
    bool
        Whether it was removed; False when it has gone, is another one, or cannot be
        removed.
    """
    try:
        stat = os.lstat(path)
        if (stat.st_dev, stat.st_ino) != (device, inode):
            return False
        if os.path.isdir(path):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return False
    return True


def remove_stale_socket(path: str) -> bool:
    """Remove a socket file on which nobody listens any more; unix(7).

    Returns
    -------
    bool
        Whether it was removed; False when it has gone, is alive, or is no socket.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        stat = os.lstat(path)
        if not S_ISSOCK(stat.st_mode):
            return False  # connect refuses a file, too
        probe.setblocking(False)  # a full queue is a sign of life, not worth a wait
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return remove_path(path, stat.st_dev, stat.st_ino)
    return False


def _remove_arenas(supervisor_pid: int) -> None:
    """Remove shared-memory files that the supervisor had made but not yet unlinked.

    `multiprocessing.heap.Arena` makes ``pym-PID-*`` and unlinks it at once; a SIGKILL
    in between leaves the file.
    """
    try:
        names = os.listdir("/dev/shm")
    except OSError:
        return
    for name in names:
        if name.startswith(f"pym-{supervisor_pid}-"):
            with contextlib.suppress(OSError):
                os.unlink(f"/dev/shm/{name}")
