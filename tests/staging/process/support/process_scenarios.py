"""Ends that a supervisor and its children may come to, and what must not be left then.

Each scenario starts `supervisor_program`, does something to it, and looks at what is
there a second after its deadline. The looking process makes itself a subreaper
(prctl(2)), so that whatever outlives its parent becomes its child: nothing of the
supervisor's can hide from it. Used by the tests (a few rounds) and by the soak.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import uuid
from collections.abc import Callable, Iterator

import process_targets

from staging.process import descendants, shutdown, wait_for_completion_or_failure
from staging.process.children import ChildProcess

SUPPORT = pathlib.Path(__file__).resolve().parent
ROOT = SUPPORT.parents[3]

TIMEOUT_S = 0.5
"""What the supervisor's managers are given, each, to shut down."""

# Two managers one after the other, each with a second for the end; plus what an
# interpreter takes to exit.
DEADLINE_S = 2 * (TIMEOUT_S + 1) + 0.5
AFTER_DEADLINE_S = 1.0

_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Be the parent of every orphan below this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Household:
    """Everything that came into being below this process since it was made."""

    def __init__(self) -> None:
        self._before = {stat.key for stat in self._below()}

    @staticmethod
    def _below() -> list[descendants.ProcessStat]:
        processes = descendants.list_processes()
        children: dict[int, list[int]] = {}
        for stat in processes.values():
            children.setdefault(stat.ppid, []).append(stat.pid)
        found, heads = [], [os.getpid()]
        while heads:
            for pid in children.get(heads.pop(), ()):
                found.append(processes[pid])
                heads.append(pid)
        return found

    def members(self) -> list[descendants.ProcessStat]:
        return [stat for stat in self._below() if stat.key not in self._before]

    def reap(self) -> None:
        """Do what init would: reap the adopted."""
        for stat in self.members():
            if stat.is_dead and stat.ppid == os.getpid():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(stat.pid, os.WNOHANG)

    def leftovers(self) -> list[str]:
        self.reap()
        return [describe(stat) for stat in self.members()]

    def expect_empty(self, seconds: float = 3.0) -> None:
        """Wait until nothing is left but multiprocessing's resource tracker.

        Raises
        ------
        AssertionError
            Something is left after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while left := [line for line in self.leftovers() if "resource_tracker" not in line]:
            if time.monotonic() > deadline:
                raise AssertionError(f"left behind: {left}")
            time.sleep(0.005)

    def kill(self) -> None:
        """End what a failed test leaves."""
        for _ in range(50):
            members = [s for s in self.members() if "resource_tracker" not in describe(s)]
            if not members:
                return
            for stat in members:
                handle = descendants.kill(stat)
                if handle is not None:
                    os.close(handle)
            self.reap()
            time.sleep(0.02)


def describe(stat: descendants.ProcessStat) -> str:
    try:
        command = pathlib.Path(f"/proc/{stat.pid}/cmdline").read_bytes()
    except OSError:
        command = b"?"
    shown = command.replace(b"\0", b" ").decode(errors="replace")[:400]
    return f"pid {stat.pid} (parent {stat.ppid}, session {stat.sid}, {stat.state}): {shown}"


@dataclasses.dataclass
class Round:
    """One run of one scenario."""

    rng: random.Random
    folder: str
    port: int
    modes: tuple[str, ...] = ("ready sleep=1000", "ready sleep=1000")
    engine: str = "ready sleep=1000"
    allowance: float = 1.0
    """How many times the promised time may pass."""

    def __post_init__(self) -> None:
        self.household = Household()
        self.memory: str | None = f"stg-{uuid.uuid4().hex[:12]}"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = pathlib.Path(self.folder, "log")

    def start(self) -> subprocess.Popen[bytes]:
        """Start the supervisor, as the leader of a group like a shell's job."""
        config = {
            "folder": self.folder,
            "port": self.port,
            "timeout": TIMEOUT_S,
            "modes": self.modes,
            "engine": self.engine,
            "memory": self.memory,
        }
        path = os.pathsep.join([str(ROOT), str(SUPPORT)])
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SUPPORT / "supervisor_program.py"), json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path, "STAGING_RPC_BASE_PATH": self.folder},
                start_new_session=True,
            )
        return self.process

    def wait_ready(self) -> None:
        """Wait until every child has announced itself."""
        names = [f"ready-ApiServer_{i}" for i in range(len(self.modes))] + ["ready-EngineCore_0"]
        for name in [*names, "started"]:
            self.wait_for(name)

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while not pathlib.Path(self.folder, name).exists():
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the supervisor ended early: {self.log.read_text()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {name} within 60 s: {self.log.read_text()}")
            time.sleep(0.005)

    def go(self) -> None:
        """Let the children go on that wait for it."""
        pathlib.Path(self.folder, "go").touch()

    def wait_for_some_moment(self) -> None:
        """Wait until the supervisor has come some way: it, its tracker, its warden, its children.

        Counted in processes and not in seconds, so that no moment is missed on a busy
        machine.
        """
        assert self.process is not None
        count = self.rng.randint(0, 3 + 1 + len(self.modes))
        deadline = time.monotonic() + 10
        while len(self.household.members()) < count and time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            time.sleep(0.001)
        time.sleep(self.rng.uniform(0.0, 0.03))

    def finish(self, *, code: int | None, deadline: float = DEADLINE_S) -> float:
        """Wait for the supervisor's end and look for what is left; return the seconds.

        Parameters
        ----------
        code
            The exit code that it must end with; None where several are right.
        deadline
            Seconds from now by which it must have ended.
        """
        assert self.process is not None
        begin = time.monotonic()
        try:
            ended_with = self.process.wait(deadline * self.allowance)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the supervisor runs {deadline * self.allowance:.1f} s after it should have "
                f"ended: {self.log.read_text()}"
            ) from None
        limit = time.monotonic() + AFTER_DEADLINE_S * self.allowance
        while left := self.leftovers():
            if time.monotonic() > limit:
                raise AssertionError(
                    f"left behind: {left}; the supervisor wrote: {self.log.read_text()}"
                )
            time.sleep(0.005)
        seconds = time.monotonic() - begin
        if code is not None and ended_with != code:
            raise AssertionError(f"exit code {ended_with}, not {code}: {self.log.read_text()}")
        return seconds

    def leftovers(self) -> list[str]:
        """Return what there is of processes, the port, ipc files and shared memory."""
        assert self.process is not None
        left = self.household.leftovers()
        left += [str(path) for path in pathlib.Path(self.folder).iterdir() if path.is_socket()]
        for name in os.listdir("/dev/shm"):
            if name == self.memory or name.startswith(f"pym-{self.process.pid}-"):
                left.append(f"/dev/shm/{name}")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", self.port))
                sock.listen()
            except OSError as error:
                left.append(f"port {self.port}: {error}")
        return left


def supervisor_killed(r: Round) -> float:
    """The supervisor gets SIGKILL; one child is stopped, one ignores SIGTERM, one has a family."""
    r.modes = ("ready ignore sleep=1000", "ready stop", "family ready sleep=1000")
    process = r.start()
    r.wait_ready()
    process.kill()
    return r.finish(code=-signal.SIGKILL, deadline=0.5)


def supervisor_killed_at_start(r: Round) -> float:
    """The supervisor gets SIGKILL at a random moment from its first line on."""
    r.memory = None  # SharedMemory itself leaves a file if it is interrupted in the making
    process = r.start()
    r.wait_for_some_moment()
    process.kill()
    return r.finish(code=None, deadline=0.5)


def sigterm(r: Round) -> float:
    """The supervisor gets SIGTERM; its handler raises SystemExit."""
    process = r.start()
    r.wait_ready()
    process.terminate()
    return r.finish(code=128 + signal.SIGTERM)


def ctrl_c(r: Round) -> float:
    """The terminal sends SIGINT to the whole group, at a random moment."""
    r.memory = None  # as above
    process = r.start()
    r.wait_for_some_moment()
    for _ in range(3):
        begin = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DEADLINE_S)
        # Python itself loses an interrupt that comes while it looks at its command line,
        # or in a callback of its imports; it says so, and whoever pressed the keys
        # presses them again.
        text = r.log.read_text()
        if "Exception ignored" not in text and "Failed checking if argv[0]" not in text:
            break
    # Until the managers are there an interrupt ends the start; then it ends the wait.
    r.finish(code=None)
    return time.monotonic() - begin


def worker_crash(r: Round) -> float:
    """A worker dies of SIGSEGV and leaves a family."""
    r.modes = ("family ready await=go die=11", "ready sleep=1000")
    r.start()
    r.wait_ready()
    r.go()
    seconds = r.finish(code=1)
    _expect(r, "Process ApiServer_0 (PID:", "died with exit code -11")
    return seconds


def engine_crash(r: Round) -> float:
    """An engine exits with 5 and leaves a family."""
    r.engine = "family ready await=go exit=5"
    r.start()
    r.wait_ready()
    r.go()
    seconds = r.finish(code=1)
    _expect(r, "Engine core process EngineCore_0 died unexpectedly.", "exit code 5")
    return seconds


def sigterm_ignored(r: Round) -> float:
    """A worker and the engine ignore SIGTERM."""
    r.modes = ("ignore ready sleep=1000", "ready sleep=1000")
    r.engine = "ignore ready sleep=1000"
    process = r.start()
    r.wait_ready()
    process.terminate()
    return r.finish(code=128 + signal.SIGTERM)


def stopped_child(r: Round) -> float:
    """A worker and the engine are stopped, and one of them ignores SIGTERM."""
    r.modes = ("ready ignore stop sleep=1000", "ready sleep=1000")
    r.engine = "ready stop sleep=1000"
    process = r.start()
    r.wait_ready()
    process.terminate()
    return r.finish(code=128 + signal.SIGTERM)


def family(r: Round) -> float:
    """Every child has background and setsid grandchildren that hold all it inherited."""
    r.modes = ("family ready sleep=1000", "family ignore ready sleep=1000")
    r.engine = "family ready sleep=1000"
    process = r.start()
    r.wait_ready()
    process.terminate()
    return r.finish(code=128 + signal.SIGTERM)


def supervisors_below(r: Round) -> float:
    """A worker and the engine are supervisors themselves; the one above gets SIGKILL."""
    r.modes = ("nest ready sleep=1000", "ready sleep=1000")
    r.engine = "nest ignore ready sleep=1000"
    process = r.start()
    r.wait_ready()
    process.kill()
    return r.finish(code=-signal.SIGKILL, deadline=0.5)


def supervisors_below_end(r: Round) -> float:
    """A worker and the engine are supervisors themselves; all get SIGTERM, or SIGKILL after it."""
    r.modes = ("nest ready sleep=1000", "ready sleep=1000")
    r.engine = "nest ignore ready sleep=1000"
    process = r.start()
    r.wait_ready()
    process.terminate()
    return r.finish(code=128 + signal.SIGTERM)


def completion(r: Round) -> float:
    """The workers end with 0, and leave families."""
    r.modes = ("family ready await=go exit=0", "ready await=go exit=0")
    r.start()
    r.wait_ready()
    r.go()
    return r.finish(code=0)


SCENARIOS: dict[str, Callable[[Round], float]] = {
    function.__name__: function
    for function in (
        supervisor_killed,
        supervisor_killed_at_start,
        sigterm,
        ctrl_c,
        worker_crash,
        engine_crash,
        sigterm_ignored,
        stopped_child,
        family,
        supervisors_below,
        supervisors_below_end,
        completion,
    )
}


def _expect(r: Round, *words: str) -> None:
    text = r.log.read_text()
    for word in words:
        if word not in text:
            raise AssertionError(f"{word!r} is not in what the supervisor wrote: {text}")


def free_port() -> int:
    """Return a port that is free now, below those that the kernel hands out."""
    rng = random.Random()
    while True:
        port = rng.randrange(20000, 30000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def run_round(name: str, index: int, *, seed: int, port: int, allowance: float = 1.0) -> float:
    """Run a scenario once; return the seconds from its end's beginning to nothing left.

    Parameters
    ----------
    name
        One of `SCENARIOS`.
    index, seed
        What is random in it follows from these and the name.
    port
        The supervisor's.
    allowance
        How many times the promised time may pass.

    Raises
    ------
    AssertionError
        Something was left behind, came too late, or ended wrongly; it names the seed.
    """
    folder = tempfile.mkdtemp(prefix="stgt-")
    r = Round(random.Random(f"{seed} {name} {index}"), folder, port, allowance=allowance)
    try:
        return SCENARIOS[name](r)
    except AssertionError as error:
        raise AssertionError(f"{name}, seed {seed}, round {index}: {error}") from None
    finally:
        r.household.kill()
        if r.process is not None:
            r.process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def run_verdicts(runs: int, *, seed: int, kind: str = "ours") -> Iterator[float]:
    """Let one to eight workers exit with 0, again and again; yield the seconds of each run.

    Parameters
    ----------
    kind
        ``"ours"``, or a start method of multiprocessing.

    Raises
    ------
    RuntimeError
        A worker was reported as failed; none has.
    """
    rng = random.Random(seed)
    make = ChildProcess if kind == "ours" else multiprocessing.get_context(kind).Process
    for _ in range(runs):
        processes = [
            make(target=process_targets.exit_with, name=f"ApiServer_{i}", args=(0,))
            for i in range(rng.randint(1, 8))
        ]
        begin = time.monotonic()
        try:
            for process in processes:
                process.start()
            wait_for_completion_or_failure(types.SimpleNamespace(processes=processes))
        finally:
            shutdown(processes, 0)
        yield time.monotonic() - begin
