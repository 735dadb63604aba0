"""The supervisor's link to its warden: who is to be ended when this process dies.

`guard()` returns the one of this process. It starts a warden (`staging.process.warden`)
when there is something to guard, tells it every change, starts another if somebody
kills it, and sends it away when nothing is left: a supervisor that has shut down has
no process of ours.

Thread-safe; a signal handler that interrupts a method may call any other.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn

from staging.process import descendants, reserve, warden
from staging.process import pidfd as _pidfd

logger = logging.getLogger(__name__)

# Kept here so that the warden is a real process even where Popen is replaced later.
_Popen = subprocess.Popen

# A warden that ends by itself within this time (seconds) could not run at all.
_FALSE_START = 2.0
_FALSE_STARTS = 3

# How long to wait (seconds) for a warden that does not read, and for its leave.
_SEND_TIMEOUT = 1.0
_LEAVE_TIMEOUT = 0.5

# How long to wait (seconds) for the end of a warden whose start was interrupted: it is
# reaped now or not at all.
_LOST_TIMEOUT = 5.0


class Guard:
    """What this process has to be guarded, and the warden that knows it too."""

    def __init__(self) -> None:
        self.mark = descendants.new_mark()
        """Carried by every child of this process, and by all that they start."""
        self.owner = os.getpid()
        # What is below is read and changed under the lock. It is changed before the
        # warden is told, so that a warden that has to be replaced learns it all.
        self._lock = threading.RLock()
        self._expected: set[str] = set()
        self._children: dict[str, warden.Child] = {}
        self._paths: dict[str, tuple[int, int]] = {}
        self._link: _Link | None = None
        self._retired: list[_Link] = []
        self._false_starts = 0

    @property
    def warden_pid(self) -> int | None:
        """The warden's pid while there is one."""
        link = self._link
        return link.pid if link is not None else None

    def pids(self) -> set[int]:
        """Return the pids of the children and of every warden that is not reaped yet."""
        with self._lock:
            links = [*self._retired, *([self._link] if self._link is not None else [])]
            return {child.pid for child in self._children.values()} | {link.pid for link in links}

    @contextmanager
    def expecting(self, mark: str) -> Iterator[None]:
        """Keep a warden running from before a child's fork until it has been made known.

        Raises
        ------
        RuntimeError
            No warden can be started; then no child should be.
        """
        with self._lock:
            self._expected.add(mark)
        try:
            reserve.hold()
            self.check()
            yield
        finally:
            with self._lock:
                self._expected.discard(mark)
            self._dismiss_if_idle()

    def add_child(self, mark: str, pid: int, pidfd: int) -> None:
        """Make a child known, until `remove_child`; `pidfd` must stay open until then."""
        stat = descendants.read_stat(pid)
        child = warden.Child(pid, stat.start if stat is not None else 0, pidfd)
        with self._lock:
            self._children[mark] = child
            self._tell(_child_packet(mark, child), pidfd)

    def remove_child(self, mark: str) -> None:
        """Forget a child that has been reaped, or whose start was interrupted."""
        with self._lock:
            # Told first: an interruption in between tells it again.
            if mark in self._children:
                self._tell_of_an_end(b"gone\0" + mark.encode())
            self._children.pop(mark, None)
            self._expected.discard(mark)
        self._dismiss_if_idle()

    def expect_path(self, path: str) -> bool:
        """Have the socket file removed that this process is about to make at `path`.

        That is, if nobody listens on it then; until `add_path` says which file it is.

        Returns
        -------
        bool
            False when the path is known already: it is in use by this process.
        """
        with self._lock:
            if path in self._paths:
                return False
            self._add_path(path, 0, 0)
            return True

    def add_path(self, path: str, stat: os.stat_result) -> None:
        """Have `path` removed when this process dies, if it is still the same file.

        A folder is removed if it is empty then.
        """
        self._add_path(path, stat.st_dev, stat.st_ino)

    def _add_path(self, path: str, device: int, inode: int) -> None:
        with self._lock:
            self._paths[path] = (device, inode)
            self._tell(_path_packet(path, device, inode))

    def remove_path(self, path: str) -> None:
        """Forget a path that has been removed."""
        with self._lock:
            if path in self._paths:
                self._tell_of_an_end(b"drop\0" + os.fsencode(path))
            self._paths.pop(path, None)
        self._dismiss_if_idle()

    def check(self) -> None:
        """Start a warden if there should be one and there is none.

        Raises
        ------
        RuntimeError
            Wardens end as soon as they are started.
        """
        with self._lock:
            lost = self._ensure()
        # Not under the lock: a log handler's own lock may be held by whoever waits for
        # this one, in a finalizer.
        if lost:
            logger.warning("The warden (PID: %d) has ended and is replaced", lost)

    def _ensure(self) -> int:
        """As `check`; return the pid of a warden that has ended. LOCK: _lock."""
        lost = 0
        if self.owner != os.getpid():
            return lost
        self._retired = [link for link in self._retired if not link.reap(0)]
        if self._link is not None and self._link.has_ended:
            lost = self._link.pid
            if lost:  # else its start was interrupted
                age = time.monotonic() - self._link.started
                self._false_starts = self._false_starts + 1 if age < _FALSE_START else 0
            self._retire()
        if self._link is None and (self._expected or self._children or self._paths):
            if self._false_starts >= _FALSE_STARTS:
                raise RuntimeError(
                    f"the warden ended {self._false_starts} times right after its start; "
                    f"run {spawn.get_executable()!r} -S -c 'import socket' to see why"
                )
            self._start()
        return lost

    def _tell(self, packet: bytes, fd: int | None = None) -> None:
        if self.owner != os.getpid():
            return  # a fork's copy
        if self._link is not None and not self._link.send(packet, fd):
            # It has gone, or was stopped and is of no use.
            self._link.kill()
            self._link.reap(_LEAVE_TIMEOUT)
            self._retire()
        self._ensure()

    def _tell_of_an_end(self, packet: bytes) -> None:
        """As `_tell`; what has ended is no matter for a warden that cannot be had."""
        try:
            self._tell(packet)
        except Exception as error:
            logger.debug("No warden could be told of an end: %r", error)

    def _start(self) -> None:
        link = self._link = _Link()
        link.start(self.mark)
        for mark, child in self._children.items():
            link.send(_child_packet(mark, child), child.pidfd)
        for path, (device, inode) in self._paths.items():
            link.send(_path_packet(path, device, inode))

    def _retire(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._retired.append(link)
        self._retired = [link for link in self._retired if not link.reap(0)]

    def _dismiss_if_idle(self) -> None:
        with self._lock:
            if self.owner != os.getpid() or self._link is None:
                return
            if self._expected or self._children or self._paths:
                return
            reserve.release()
            self._link.send(b"bye")
            self._link.reap(_LEAVE_TIMEOUT)  # a millisecond, unless the machine is busy
            self._retire()


class _Link:
    """One warden: its process and the socket to it."""

    def __init__(self) -> None:
        self.pid = 0
        self.started = time.monotonic()
        self._pidfd = -1
        self._socket: socket.socket | None = None

    def start(self, mark: str) -> None:
        """Start the process; if that is interrupted, it is ended and reaped."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_pidfd = -1
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            own_pidfd = _pidfd.open_pidfd(os.getpid())
            # Until it ignores these signals, none may end it.
            signal.pthread_sigmask(signal.SIG_BLOCK, warden.SIGNALS)
            process = _Popen(
                _command(theirs.fileno(), own_pidfd, mark),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), own_pidfd),
                start_new_session=True,
                env={k: v for k, v in os.environ.items() if k != descendants.LINEAGE},
            )
            process.returncode = 0  # it is reaped through the pidfd
            self.pid = process.pid
            self._pidfd = _pidfd.open_pidfd(process.pid)
        except BaseException:
            _end_lost_warden(mark)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
            if own_pidfd >= 0:
                os.close(own_pidfd)
        self._socket.settimeout(_SEND_TIMEOUT)

    @property
    def has_ended(self) -> bool:
        return self._pidfd < 0 or _pidfd.has_ended(self._pidfd)

    def send(self, packet: bytes, fd: int | None = None) -> bool:
        """Send one packet; return False when the warden has gone or does not read."""
        if self._socket is None:
            return False
        try:
            socket.send_fds(self._socket, [packet], [] if fd is None else [fd])
        except OSError:  # a timeout is one, too
            return False
        return True

    def kill(self) -> None:
        if self._pidfd >= 0:
            _pidfd.send_signal(self._pidfd, signal.SIGKILL)

    def reap(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the warden's end; return whether it came."""
        if self._socket is not None:
            self._socket.close()
        if self._pidfd < 0:
            return True
        if not _pidfd.wait_any([self._pidfd], timeout):
            return False
        _pidfd.reap(self._pidfd)
        fd, self._pidfd = self._pidfd, -1
        os.close(fd)
        return True


def _end_lost_warden(mark: str) -> None:
    """End a warden whose pid never arrived, because its start was interrupted."""
    for stat in descendants.list_processes().values():
        if stat.ppid == os.getpid() and mark.encode() in descendants.read_command(stat.pid):
            handle = descendants.kill(stat)
            if handle is not None and handle >= 0:
                _pidfd.wait_any([handle], _LOST_TIMEOUT)
                _pidfd.reap(handle)
                os.close(handle)


def _command(socket_fd: int, own_pidfd: int, mark: str) -> list[str]:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    program = (
        # The standard library first, and no current folder: what the application has
        # beside it must not be taken for a module of the standard library.
        f"import sys; sys.path = [*filter(None, sys.path), {root!r}]; "
        "from staging.process.warden import main; "
        f"main({socket_fd}, {own_pidfd}, {os.getpid()}, {mark!r})"
    )
    # Nothing of the application is imported either, whatever site-packages or the
    # environment ask for; only a Python that is told its home keeps it.
    flags = ["-S", "-s"] if "PYTHONHOME" in os.environ else ["-S", "-s", "-E"]
    return [os.fsdecode(spawn.get_executable()), *flags, "-c", program]


def _child_packet(mark: str, child: warden.Child) -> bytes:
    return b"\0".join([b"child", mark.encode(), b"%d" % child.pid, b"%d" % child.start])


def _path_packet(path: str, device: int, inode: int) -> bytes:
    return b"\0".join([b"path", b"%d" % device, b"%d" % inode, os.fsencode(path)])


class _Current:
    """The guard of this process."""

    guard: Guard | None = None
    lock = threading.RLock()

    @classmethod
    def forget_lock(cls) -> None:
        cls.lock = threading.RLock()  # a fork's copy may be held by a thread left behind


os.register_at_fork(after_in_child=_Current.forget_lock)


def guard() -> Guard:
    """Return the guard of this process; a forked copy of a process gets its own."""
    with _Current.lock:
        if _Current.guard is None or _Current.guard.owner != os.getpid():
            _Current.guard = Guard()
        return _Current.guard
