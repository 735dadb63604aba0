"""A native frontend: one executable that serves HTTP in the API servers' place."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
import math
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from staging.process import descendants
from staging.process import pidfd as _pidfd
from staging.process.children import check_children_can_be_reaped
from staging.process.guard import guard
from staging.process.process_set import Listener, ProcessSet, check_listeners
from staging.process.redaction import redacted
from staging.process.termination import ShutdownReport

logger = logging.getLogger(__name__)

ENGINE_READY_TIMEOUT = "STAGING_ENGINE_READY_TIMEOUT_S"
HTTP_TIMEOUT_KEEP_ALIVE = "STAGING_HTTP_TIMEOUT_KEEP_ALIVE"

# What the supervisor decides for the frontend, or says on the command line.
_NOT_FOR_FRONTEND = frozenset(
    {
        "api_server_count",
        "data_parallel_rank",
        "data_parallel_external_lb",
        "data_parallel_hybrid_lb",
    }
)


class RustFrontendProcessManager:
    """Starts a frontend executable and ends it.

    It is run as ``binary frontend --listen-fd N --input-listener-fd N
    --output-listener-fd N --engine-start-index N --engine-count N
    --data-parallel-size N [--grpc-listen-fd N] [--coordinator-address A]
    --args-json JSON``, inherits exactly those descriptors, and leads a session of its
    own.

    Parameters
    ----------
    binary_path
        The executable.
    sock
        The listening HTTP socket; it stays the caller's.
    args
        The server's arguments. Those that differ from `parser`'s defaults are passed on
        as JSON; without a parser, those that are not None. ``model_tag`` falls back to
        ``model``; ``engine_ready_timeout_secs`` and ``http_timeout_keep_alive`` come
        from ``STAGING_ENGINE_READY_TIMEOUT_S`` (600) and
        ``STAGING_HTTP_TIMEOUT_KEEP_ALIVE`` (5).
    input_listener, output_listener
        They are the manager's from here on: it closes them after the start and cleans
        them up at the end.
    engine_start_index, engine_count, data_parallel_size
        Passed on.
    stats_update_address
        The coordinator's address, if there is one.
    grpc_sock
        A second listening socket, if there is one; it stays the caller's.
    parser
        An `argparse.ArgumentParser`.
    env
        The executable's environment; this process's by default.

    Attributes
    ----------
    processes : list
        One process, with the members of a `multiprocessing.Process` that are needed to
        watch it.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong, or cannot be passed on as JSON.
    BaseException
        Any failure while starting, and whatever a signal handler raises meanwhile: what
        was started is ended, and the listeners cleaned up, before it is passed on.

    Notes
    -----
    The command line, with what `args` has of secrets, can be read by every user of the
    machine (``/proc/PID/cmdline``). The log shows secrets as ``***``.
    """

    def __init__(  # noqa: PLR0917 - the arguments and their order are those of its users
        self,
        binary_path: str | os.PathLike[str],
        sock: Any,
        args: Any,
        input_listener: Listener,
        output_listener: Listener,
        engine_start_index: int,
        engine_count: int,
        data_parallel_size: int,
        stats_update_address: str | None = None,
        grpc_sock: Any = None,
        *,
        parser: Any = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._set = ProcessSet(self, min_grace=5.0)
        self.processes: list[_SubprocessWrapper] = self._set.processes
        self._set.listeners += [input_listener, output_listener]
        with self._set.starting():
            check_listeners("input_listener", [input_listener], 1)
            check_listeners("output_listener", [output_listener], 1)
            fds = {
                "--listen-fd": _descriptor("sock", sock),
                "--input-listener-fd": input_listener.socket.fileno(),
                "--output-listener-fd": output_listener.socket.fileno(),
            }
            numbers = {
                "--engine-start-index": engine_start_index,
                "--engine-count": engine_count,
                "--data-parallel-size": data_parallel_size,
            }
            if grpc_sock is not None:
                fds["--grpc-listen-fd"] = _descriptor("grpc_sock", grpc_sock)
            command = [os.fspath(binary_path), "frontend"]
            for option in ("--listen-fd", "--input-listener-fd", "--output-listener-fd"):
                command += [option, str(fds[option])]
            for option, number in numbers.items():
                command += [option, str(number)]
            if grpc_sock is not None:
                command += ["--grpc-listen-fd", str(fds["--grpc-listen-fd"])]
            if stats_update_address is not None:
                command += ["--coordinator-address", stats_update_address]
            values = frontend_arguments(args, parser)
            shown = [*command, "--args-json", _to_json(redacted(values))]
            command += ["--args-json", _to_json(values)]
            check_children_can_be_reaped()
            logger.info("Launching Rust frontend: %s", " ".join(shown))
            self._launch(command, shown, sorted(fds.values()), os.environ if env is None else env)
            input_listener.close()
            output_listener.close()

    def _launch(
        self, command: list[str], shown: list[str], fds: list[int], env: Mapping[str, str]
    ) -> None:
        mark = descendants.new_mark()
        with guard().expecting(mark):
            try:
                process = subprocess.Popen(
                    command,
                    pass_fds=fds,
                    start_new_session=True,
                    env=descendants.marked_environment(env, [guard().mark, mark]),
                )
                process.args = shown  # its repr shows them
                self.processes.append(_SubprocessWrapper(process, "RustFrontend", mark=mark))
            except BaseException:
                # It may have been forked though its pid never arrived.
                descendants.kill_family([mark], timeout=5.0)
                guard().remove_child(mark)
                raise

    def shutdown(self, timeout: float | None = None) -> ShutdownReport:
        """End the frontend and clean the listeners up; see `staging.process.shutdown`.

        It may be called again at any time, also after a call that was interrupted.

        Parameters
        ----------
        timeout
            Seconds until SIGKILL, at least 5; None means 5. It returns at most a second
            later.
        """
        return self._set.shutdown(timeout)


class _SubprocessWrapper:
    """A `subprocess.Popen` with the members of a `multiprocessing.Process`.

    Parameters
    ----------
    proc
        The process. What its ``poll()`` says when it is wrapped is trusted: one that
        has ended is never signalled.
    name
        What it is called in messages.
    mark
        The mark in its environment, if it was started with one.

    Notes
    -----
    ``sentinel`` is a pidfd, or the end of a pipe that a thread closes where there can
    be none. ``exitcode`` is None as long as it runs, and where it cannot be known
    because somebody else has reaped it; then ``is_alive()`` is False. May be used from
    any thread.
    """

    def __init__(self, proc: Any, name: str, *, mark: str | None = None) -> None:
        self._proc = proc
        self.name = name
        self.pid: int = proc.pid
        self._mark = mark
        self._guard = guard()
        self._lock = threading.RLock()
        self._code: int | None = proc.poll()
        self._has_ended = self._code is not None
        self._is_reaped = False
        self._pidfd = -1
        self._leads_session = False
        self._start = 0
        if not self._has_ended:
            self._open()
        if self._pidfd < 0:
            self._sentinel = self._open_pipe()
        else:
            self._sentinel = self._pidfd

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            fd = _pidfd.open_pidfd(self.pid)
            if not _pidfd.is_own_child(fd):
                os.close(fd)
                return
            self._pidfd = fd
            stat = descendants.read_stat(self.pid)
            if stat is not None:
                self._start = stat.start
                self._leads_session = stat.sid == self.pid
            if self._mark is not None:
                self._guard.add_child(self._mark, self.pid, fd)

    def _open_pipe(self) -> int:
        reader, writer = os.pipe()
        if self._has_ended:
            os.close(writer)
            return reader

        def watch(proc: Any) -> None:
            try:
                proc.wait()
            finally:
                os.close(writer)

        threading.Thread(
            target=watch, args=(self._proc,), name=f"{self.name}Monitor", daemon=True
        ).start()
        return reader

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r} pid={self.pid}>"

    def __del__(self) -> None:
        fd = getattr(self, "_sentinel", -1)
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the process has ended."""
        return self._sentinel

    @property
    def pidfd(self) -> int | None:
        """The process's pidfd, if there is one and the process has not been reaped."""
        return self._pidfd if self._pidfd >= 0 and not self._has_ended else None

    @property
    def exitcode(self) -> int | None:
        """The exit status, or ``-signal``; None if it runs or the code can't be known."""
        self._update()
        return self._code

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        self._update()
        return not self._has_ended

    def terminate(self) -> None:
        """Send SIGTERM to the process alone; do nothing if it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process alone; do nothing if it has ended."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signum: int) -> None:
        """Send a signal to the process alone; do nothing if it has ended."""
        self._update()
        if self._has_ended:
            return
        if self._pidfd >= 0:
            _pidfd.send_signal(self._pidfd, signum)
        else:
            self._proc.send_signal(signum)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the process, at most `timeout` seconds."""
        if not self._has_ended:
            _pidfd.wait_any([self._sentinel], timeout)
            self._update()

    def kill_descendants(self) -> None:
        """SIGKILL all that the process has started and that still runs, but not itself."""
        with self._lock:
            if self._has_ended or self._pidfd < 0 or not _pidfd.is_own_child(self._pidfd):
                return
            descendants.kill_family(
                self._marks(),
                groups=[self.pid] if self._leads_session else (),
                roots=[self.pid],
                since=self._start,
                spare=[self.pid],
            )

    def _marks(self) -> Sequence[str]:
        return () if self._mark is None else (self._mark,)

    def _update(self) -> None:
        """See whether it has ended; if so, end what it left and reap it."""
        with self._lock:
            if self._has_ended:
                return
            if self._pidfd >= 0:
                self._update_by_pidfd()
            else:
                self._code = self._proc.poll()
                self._has_ended = self._code is not None

    def _update_by_pidfd(self) -> None:
        """As _update. LOCK: _lock. A signal handler may interrupt it: it can be repeated."""
        if not self._is_reaped:
            if not _pidfd.has_ended(self._pidfd):
                return
            self._learn_code()
        _pidfd.reap(self._pidfd)
        if self._mark is not None:
            self._guard.remove_child(self._mark)
        self._has_ended = True

    def _learn_code(self) -> None:
        try:
            code: int | None = _pidfd.exit_code(self._pidfd)
            groups = [self.pid] if self._leads_session else []
        except ChildProcessError:
            # Somebody has reaped it: Popen itself, which then knows, or somebody else,
            # and then Popen would say 0.
            with getattr(self._proc, "_waitpid_lock", contextlib.nullcontext()):
                code = self._proc.returncode
            groups = []
        try:
            descendants.kill_family(self._marks(), groups=groups, since=self._start)
        except Exception:
            logger.warning("Cannot look for what %s left", self.name, exc_info=True)
        self._code = code
        self._is_reaped = True
        if self._proc.returncode is None:
            # So that Popen does not wait for it. It has no way to say "unknown".
            self._proc.returncode = code if code is not None else -signal.SIGKILL


def frontend_arguments(args: Any, parser: Any = None) -> dict[str, Any]:
    """Return what a frontend is told of the server's arguments, ready for JSON.

    Parameters
    ----------
    args
        A namespace, or any object with attributes.
    parser
        An `argparse.ArgumentParser`: only what differs from its defaults is told.

    Raises
    ------
    TypeError
        `args` has no attributes.
    ValueError
        An environment variable is no number.
    """
    try:
        given = dict(vars(args))
    except TypeError:
        raise TypeError(f"args is a {type(args).__name__}: it must be a namespace") from None
    values = {}
    for key, value in given.items():
        if key in _NOT_FOR_FRONTEND or key.startswith("_"):
            continue
        if value is None if parser is None else _equals(value, parser.get_default(key)):
            continue
        values[key] = _plain(key, value)
    if values.get("model_tag") is None and given.get("model") is not None:
        values["model_tag"] = _plain("model", given["model"])
    values["engine_ready_timeout_secs"] = _number_from(ENGINE_READY_TIMEOUT, 600)
    values["http_timeout_keep_alive"] = _number_from(HTTP_TIMEOUT_KEEP_ALIVE, 5)
    return values


def _plain(key: str, value: Any) -> Any:
    """Return `value` as JSON has it.

    Raises
    ------
    ValueError
        It is not a number that JSON has, or contains itself.
    """
    try:
        return _plain_value(value)
    except (RecursionError, ValueError) as error:
        reason = "it contains itself" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"args.{key} cannot be passed on as JSON: {reason}") from None


def _plain_value(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _plain_value(value.value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {value}")
        return float(value)
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain_value(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(_plain_value(k)): _plain_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(
            (_plain_value(item) for item in value), key=lambda item: (str(type(item)), str(item))
        )
    for dump in ("model_dump", "to_dict"):  # pydantic and its like
        method = getattr(value, dump, None)
        if callable(method) and not isinstance(value, type):
            return _plain_value(method())
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return {k: _plain_value(v) for k, v in vars(value).items() if not k.startswith("_")}
    return str(value)


def _to_json(values: Any) -> str:
    return json.dumps(values, sort_keys=True, allow_nan=False)


def _equals(value: Any, default: Any) -> bool:
    try:
        return bool(value == default) and type(value) is type(default)
    except Exception:  # an array, whose == has no one answer
        return value is default


def _number_from(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{variable} is {text!r}: it must be a whole number of seconds") from None


def _descriptor(name: str, sock: Any) -> int:
    fd = int(sock.fileno())
    if fd < 0:
        raise ValueError(f"{name} is closed")
    return fd
