"""Child processes that can be watched exactly and ended completely.

A `ChildProcess` is a `multiprocessing` process (start method *spawn*) that differs in
how it is launched and how its end is learned:

* It leads its own session from ``exec`` on, so that neither a Ctrl-C at the terminal
  nor a signal to the supervisor's group reaches it.
* Its ``sentinel`` is a pidfd. The sentinel of `multiprocessing` is a pipe: it becomes
  readable before the exit code can be known, or long after the end if a grandchild
  has inherited it.
* When it has ended, well or not, what it left running is killed before it is reaped:
  until then the number of its group and session is still its own.
* The warden knows it before it does anything, and ends it if this process dies.

Start it from any thread; every method may be called from any thread of the process
that started it, and from a signal handler.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import multiprocessing.context
import multiprocessing.popen_spawn_posix
import multiprocessing.process
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from multiprocessing import reduction, resource_tracker, spawn, util
from multiprocessing.context import set_spawning_popen
from typing import Any, ClassVar, TypeVar

from staging.process import descendants
from staging.process import pidfd as _pidfd
from staging.process.guard import Guard, guard

logger = logging.getLogger(__name__)

_Target = TypeVar("_Target", bound=Callable[..., Any])

_BLOCKED_ATTRIBUTE = "_staging_starts_with_sigterm_blocked"

# A pipe holds 64 KiB and may be made to hold 1 MiB. A child that does not read the
# rest of what it is called with within this time (seconds) will not do so at all.
_MAX_PIPE = 1 << 20
_HANDOVER_TIMEOUT = 60.0

# After SIGKILL a process needs a moment of CPU time to end, for which it may have to wait
# on a busy machine. Nobody else would reap one whose start has failed.
_DISCARD_TIMEOUT = 5.0


def starts_with_sigterm_blocked(target: _Target) -> _Target:
    """Mark a target that drains on SIGTERM: it is started with SIGTERM blocked.

    A SIGTERM that comes while the child still imports its modules then waits instead
    of killing it. The target must call `unblock_sigterm` once its handler stands. A
    target without this mark dies of a SIGTERM at once, unless it handles it.
    """
    setattr(target, _BLOCKED_ATTRIBUTE, True)
    return target


def unblock_sigterm() -> None:
    """Let SIGTERM through in the calling thread, now that a handler stands."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def check_children_can_be_reaped() -> None:
    """Refuse to start children whose exit codes the kernel would throw away.

    Raises
    ------
    RuntimeError
        SIGCHLD is ignored: the kernel then reaps children itself, their exit codes
        are lost and their pids are given away at once; sigaction(2).
    """
    with open("/proc/thread-self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("SigIgn:"):
                if int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1:
                    raise RuntimeError(
                        "SIGCHLD is ignored, so no exit code of a child can be known: call "
                        "signal.signal(signal.SIGCHLD, signal.SIG_DFL) before starting children"
                    )
                return


class ChildProcess(multiprocessing.context.SpawnProcess):
    """A process of the supervisor; see the module for what is special about it.

    The arguments are those of `multiprocessing.Process`. ``sentinel`` becomes readable
    when the process has ended, and then ``exitcode`` is known: the exit status,
    ``-signal``, or None with ``is_alive()`` False if somebody else has reaped it (an
    exit code that cannot be known is never 0).
    """

    _parent_pid: int  # of multiprocessing.process.BaseProcess

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        super().__init__(group, target, name, args, {} if kwargs is None else kwargs, daemon=daemon)
        self.mark = descendants.new_mark()
        """Carried by this process and by all that it starts."""
        self._sigterm_blocked = bool(getattr(target, _BLOCKED_ATTRIBUTE, False))

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _Launch(process_obj)

    def start(self) -> None:
        """Start the process; it runs on, or nothing of it is left.

        Raises
        ------
        RuntimeError
            SIGCHLD is ignored, or no warden can be started.
        BaseException
            Whatever a signal handler of the caller raises meanwhile: the process is
            ended, and reaped, before it is passed on.
        """
        try:
            super().start()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Kill the process and all that it started, and reap it, whether or not it is known.

        For the caller of a `start` that was interrupted: a process may have been forked
        whose pid never arrived.
        """
        launch = self._launch
        if launch is not None:
            launch.discard()
        elif self._parent_pid == os.getpid():
            descendants.kill_family([self.mark], timeout=_DISCARD_TIMEOUT)
            guard().remove_child(self.mark)

    @property
    def _launch(self) -> _Launch | None:
        return getattr(self, "_popen", None)

    @property
    def pidfd(self) -> int | None:
        """The process's pidfd; None before the start, and once it has been reaped."""
        launch = self._launch
        return launch.pidfd if launch is not None and launch.pidfd >= 0 else None

    def is_alive(self) -> bool:
        """Return whether the process runs; False too when its end can't be learned."""
        alive = super().is_alive()
        launch = self._launch
        return alive and not (launch is not None and launch.was_reaped_elsewhere)

    def send_signal(self, signum: int) -> None:
        """Send a signal to the process alone; do nothing if it has ended."""
        self._check_closed()  # type: ignore[attr-defined]
        launch = self._launch
        if launch is None:
            raise ValueError(f"process {self.name} has not been started")
        launch._send_signal(signum)

    def kill_descendants(self) -> None:
        """SIGKILL all that the process has started and that still runs, but not itself."""
        launch = self._launch
        if launch is not None:
            launch.kill_descendants()

    def run(self) -> None:
        """Call the target, in the child."""
        if os.getppid() != self._parent_pid:
            # The supervisor died while this process was starting; the warden may not
            # have seen it yet.
            os._exit(1)
        _own_inherited_descriptors()
        if not self._sigterm_blocked:
            _let_sigterm_through()
        super().run()


class _Launch(multiprocessing.popen_spawn_posix.Popen):
    """The process behind a `ChildProcess`, in the place of multiprocessing's Popen."""

    method: ClassVar[str] = "spawn"
    _fds: list[int]  # of the base class: what the child is handed

    def __init__(self, process_obj: ChildProcess) -> None:
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._mark = process_obj.mark
        self._guard: Guard = guard()
        self._start = 0
        self.pidfd = -1
        self.was_reaped_elsewhere = False
        self._is_settled = False
        self._notes: list[tuple[Any, ...]] = []
        super().__init__(process_obj)

    def _launch(self, process_obj: ChildProcess) -> None:
        check_children_can_be_reaped()
        # Before SIGTERM is blocked: starting the tracker unblocks it.
        tracker_fd = resource_tracker.getfd()
        assert tracker_fd is not None
        self._fds.append(tracker_fd)
        payload = self._pickle(process_obj)
        read_end, own_end = os.pipe()
        # A file, whose close() may be repeated: an interrupt may come right after it.
        child_end = io.FileIO(read_end)
        fds_to_close = [own_end]
        self.finalizer = util.Finalize(self, _close_all, (fds_to_close,))
        try:
            command = spawn.get_command_line(tracker_fd=tracker_fd, pipe_handle=read_end)
            with self._guard.expecting(self._mark):
                try:
                    with _sigterm_blocked(process_obj._sigterm_blocked):
                        launcher = subprocess.Popen(
                            command,
                            start_new_session=True,
                            pass_fds=sorted({*self._fds, read_end}),
                            env=descendants.marked_environment(
                                os.environ, [self._guard.mark, self._mark]
                            ),
                        )
                    self.pid = launcher.pid
                    launcher.returncode = 0  # it is reaped through the pidfd, not by Popen
                    self.pidfd = self.sentinel = _pidfd.open_pidfd(self.pid)
                    fds_to_close.append(self.pidfd)
                    stat = descendants.read_stat(self.pid)
                    self._start = stat.start if stat is not None else 0
                    self._guard.add_child(self._mark, self.pid, self.pidfd)
                    child_end.close()
                    _hand_over(own_end, payload, self.pidfd)
                except BaseException:
                    self.discard()
                    raise
        finally:
            child_end.close()

    def _pickle(self, process_obj: ChildProcess) -> memoryview:
        buffer = io.BytesIO()
        preparation = spawn.get_preparation_data(process_obj.name)
        set_spawning_popen(self)
        try:
            reduction.dump(preparation, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            set_spawning_popen(None)
        return buffer.getbuffer()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code if it is known; reap the process when it has ended."""
        if self._owner == os.getpid() and self.pidfd >= 0 and not self._is_settled:
            if flag == 0:
                _pidfd.wait_any([self.pidfd], None)
            with self._lock:
                if not self._settled():
                    self._settle()
            # Not under the lock: a log handler's own lock may be held by whoever waits
            # for this one, in a finalizer.
            with contextlib.suppress(IndexError):  # another thread logs them, too
                while True:
                    level, message, *args = self._notes.pop(0)
                    logger.log(level, message, *args)
        return self.returncode

    def _settled(self) -> bool:
        return self._is_settled

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end, at most `timeout` seconds; return the exit code if known."""
        if self.pidfd >= 0 and not self._is_settled:
            _pidfd.wait_any([self.pidfd], timeout)
        return self.poll()

    def _send_signal(self, sig: int) -> None:
        if self.returncode is None and self.pidfd >= 0:
            _pidfd.send_signal(self.pidfd, sig)

    def discard(self) -> None:
        """Kill the process and its descendants, and reap it."""
        if self._owner != os.getpid():
            return
        if self.pidfd >= 0:
            self.kill_descendants()
            self._send_signal(signal.SIGKILL)
            self.wait(_DISCARD_TIMEOUT)
        if self.returncode is None:
            # Its pid or its pidfd never arrived, or it is slow to end.
            try:
                descendants.kill_family([self._mark], timeout=_DISCARD_TIMEOUT)
            finally:
                self._end_by_number()
            self._guard.remove_child(self._mark)

    def _end_by_number(self) -> None:
        """End and reap a process for which there is no pidfd: its number is its own."""
        pid: int | None = getattr(self, "pid", None)
        if pid is None or not _pidfd.is_own_child_number(pid):
            return
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _DISCARD_TIMEOUT
        while not _pidfd.reap_number(pid) and time.monotonic() < deadline:
            time.sleep(0.001)

    def kill_descendants(self) -> None:
        """SIGKILL all that the process has started, but not the process."""
        with self._lock:
            if self.pidfd < 0 or not _pidfd.is_own_child(self.pidfd):
                return  # it has been reaped, and its number may be another's
            descendants.kill_family(
                [self._mark],
                groups=[self.pid],
                roots=[self.pid],
                since=self._start,
                spare=[self.pid],
            )

    def _settle(self) -> None:
        """Learn the exit code, end what is left, reap, forget. LOCK: _lock.

        A signal handler may interrupt it, by raising or by calling it again: each step
        can be repeated, and is taken before what follows from it.
        """
        if self.returncode is None and not self.was_reaped_elsewhere:
            try:
                code = _pidfd.exit_code(self.pidfd)
            except ChildProcessError:
                if self._settled() or not _pidfd.has_ended(self.pidfd):
                    return
                self._kill_leftovers(groups=())
                self.was_reaped_elsewhere = True
                self._leave_active_children()
                self._note(
                    logging.WARNING,
                    "Process %d was reaped by somebody else: its exit code is unknown",
                )
            else:
                if code is None:
                    return
                self._kill_leftovers(groups=[self.pid])
                self.returncode = code
        _pidfd.reap(self.pidfd)
        # The pidfd stays open, as the sentinel, until the process object is closed.
        self._guard.remove_child(self._mark)
        self._is_settled = True

    def _leave_active_children(self) -> None:
        # multiprocessing waits for an exit code before it takes a child for ended.
        children = multiprocessing.process._children  # type: ignore[attr-defined]
        children.difference_update([child for child in children if child._popen is self])

    def _kill_leftovers(self, groups: Collection[int]) -> None:
        try:
            killed = descendants.kill_family([self._mark], groups=groups, since=self._start)
        except Exception as error:
            self._note(logging.WARNING, "Cannot look for what process %d left: %r", error)
            return
        if killed:
            pids = ", ".join(str(stat.pid) for stat in killed)
            self._note(logging.INFO, "Killed what process %d left running: %s", pids)

    def _note(self, level: int, message: str, *args: object) -> None:
        self._notes.append((level, message, self.pid, *args))


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _hand_over(pipe: int, payload: memoryview, pidfd: int) -> None:
    """Write to a new child what it is called with.

    A child that ends before it has read everything is no error here: it has been
    started, and its exit code tells.

    Raises
    ------
    TimeoutError
        The child lives but does not read: it has been stopped, or it hangs.
    """
    if len(payload) > 1 << 16:
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _MAX_PIPE)
    os.set_blocking(pipe, False)
    deadline = time.monotonic() + _HANDOVER_TIMEOUT
    poller = select.poll()
    poller.register(pipe, select.POLLOUT)
    poller.register(pidfd, select.POLLIN)
    while payload:
        ready = dict(poller.poll(1000))
        if pidfd in ready:
            return
        try:
            payload = payload[os.write(pipe, payload) :]
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"a new child did not read its arguments ({len(payload)} bytes are left) "
                    f"within {_HANDOVER_TIMEOUT:.0f} s"
                ) from None
        except BrokenPipeError:
            return


@contextlib.contextmanager
def _sigterm_blocked(wanted: bool) -> Iterator[None]:
    """Block SIGTERM in the calling thread, whose mask a child inherits, if wanted."""
    if not wanted:
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _let_sigterm_through() -> None:
    """Undo, in a child, what it inherited of its supervisor's way with SIGTERM."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    unblock_sigterm()


def _own_inherited_descriptors() -> None:
    """Keep what was handed to this child from its own children."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2:
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.set_inheritable(fd, False)
