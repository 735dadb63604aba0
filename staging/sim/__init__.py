"""The simulated device, seen from the program that runs over it.

Start a program over it with ``python -m staging sim [options] COMMAND``. In that program
this module reads the counters and the record of runtime calls, sets faults, and chooses
when enqueued work runs. It talks to the preloaded library through ctypes and imports
neither torch nor the extension.

>>> from staging import sim
>>> sim.active()                                        # over the simulated device?
True
>>> with sim.count() as calls:                          # what did this code call?
...     gpu.copy_(pinned, non_blocking=True)
>>> calls["cudaMemcpyAsync"], calls["cudaStreamSynchronize"]
(1, 0)
>>> with sim.record() as recorded:                      # in order, with stream and bytes
...     gpu.copy_(pinned, non_blocking=True)
>>> [(call.name, call.nbytes, call.kind) for call in recorded if call.kind]
[('cudaMemcpyAsync', 4096, 'HostToDevice')]
>>> with sim.policy("lazy", seed=3):                    # as late as CUDA permits
...     ...
>>> with sim.fault("cudaMalloc", nth=2, code=2):        # the second allocation fails
...     ...
>>> sim.reports()                                       # misuse: memory freed in flight, …
[]

Figures taken over it are host costs and counts of calls, never a device's speed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

__all__ = [
    "Call",
    "Fault",
    "Objects",
    "Policy",
    "Report",
    "active",
    "clear_reports",
    "context_active",
    "count",
    "counters",
    "current_policy",
    "fault",
    "hold",
    "lost",
    "objects",
    "pending",
    "policy",
    "progress",
    "protection",
    "record",
    "recover",
    "reports",
    "reset_counters",
    "run_all",
    "run_one",
    "set_policy",
]

Policy = Literal["eager", "lazy", "random", "threads", "null"]

_KINDS = ("HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice", "Default")


class _CallEntry(ctypes.Structure):
    # struct staging_sim_call of csrc/sim/control.h
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("stream", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("kind", ctypes.c_int),
        ("result", ctypes.c_int),
        ("device", ctypes.c_int),
        ("thread", ctypes.c_int),
    ]


class _Objects(ctypes.Structure):
    # struct staging_sim_objects of csrc/sim/control.h
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "events",
            "streams",
            "graphs",
            "executables",
            "user_objects",
            "pinned_allocations",
            "pinned_nbytes",
            "registrations",
            "registered_nbytes",
            "device_allocations",
            "device_nbytes",
        )
    ]


@dataclass(frozen=True)
class Call:
    """One recorded call of the CUDA runtime.

    Attributes
    ----------
    name
        The entry point, such as ``"cudaMemcpyAsync"``.
    stream
        The stream handle that was passed, as ``torch.cuda.Stream.cuda_stream`` gives it; 0
        for the default stream and for calls without a stream.
    nbytes
        Bytes moved, filled or allocated.
    kind
        Of a copy, as it was passed: ``"HostToDevice"``, …, ``"Default"``; else ``""``.
    result
        The ``cudaError_t`` that the call returned, 0 for success.
    device
        The thread's current device at the call.
    thread
        Id of the operating system's thread.
    """

    name: str
    stream: int
    nbytes: int
    kind: str
    result: int
    device: int
    thread: int


@dataclass(frozen=True)
class Report:
    """Misuse for which CUDA has no error, or a vague one.

    Attributes
    ----------
    kind
        ``"free-in-flight"``, ``"use-after-free"``, ``"illegal-address"``,
        ``"unmodelled-call"``, ``"unmodelled-kernel"``, ``"kernel-failed"`` or
        ``"call-in-callback"``.
    message
        What happened, to which memory; of what is not modelled, its name, said once.
    """

    kind: str
    message: str


@dataclass(frozen=True)
class Objects:
    """What is alive, as the program sees it: a handle that was destroyed does not count.

    Sizes are in bytes. ``registrations`` are ranges of ``cudaHostRegister``.
    """

    events: int
    streams: int
    graphs: int
    executables: int
    user_objects: int
    pinned_allocations: int
    pinned_nbytes: int
    registrations: int
    registered_nbytes: int
    device_allocations: int
    device_nbytes: int


@dataclass
class Fault:
    """A fault that :func:`fault` set; ``happened`` is valid after its block."""

    call: str
    nth: int
    code: int
    happened: bool = False


@cache
def _library() -> ctypes.CDLL | None:
    # The symbols are in the process if and only if the stand-in was preloaded.
    library = ctypes.CDLL(None)
    if not hasattr(library, "staging_sim_call_count"):
        return None
    u64, text = ctypes.c_uint64, ctypes.c_char_p
    size, integer = ctypes.c_size_t, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "call_count": (integer, []),
        "call_name": (text, [integer]),
        "counters": (None, [ctypes.POINTER(u64)]),
        "record_start": (None, [size]),
        "record_stop": (None, []),
        "record_read": (size, [ctypes.POINTER(_CallEntry), size, size]),
        "record_dropped": (size, []),
        "fault_add_in": (integer, [text, text, u64, integer, integer, integer]),
        "fault_remove": (integer, [integer]),
        "set_policy": (integer, [text, u64]),
        "policy": (text, []),
        "seed": (u64, []),
        "set_progress_ms": (integer, [integer]),
        "pending": (size, []),
        "run_one": (integer, []),
        "run_all": (None, []),
        "hold": (integer, [u64, integer]),
        "report_count": (size, []),
        "report": (integer, [size, text, size, text, size]),
        "report_clear": (None, []),
        "objects": (None, [ctypes.POINTER(_Objects)]),
        "lost": (integer, []),
        "recover": (None, []),
        "context_active": (integer, [integer]),
        "protection": (text, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"staging_sim_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


def _sim() -> ctypes.CDLL:
    library = _library()
    if library is None:
        raise RuntimeError(
            "this process does not run over the simulated device; start it with "
            "python -m staging sim COMMAND"
        )
    return library


def active() -> bool:
    """Return whether this process runs over the simulated device."""
    return _library() is not None


# -- calls --------------------------------------------------------------------------------


@cache
def _names() -> tuple[str, ...]:
    sim = _sim()
    return tuple(sim.staging_sim_call_name(i).decode() for i in range(sim.staging_sim_call_count()))


# What reset_counters() saw; the library's own counts only grow.
_zero: dict[str, int] = {}


def _totals() -> dict[str, int]:
    names = _names()
    buffer = (ctypes.c_uint64 * len(names))()
    _sim().staging_sim_counters(buffer)
    return dict(zip(names, buffer, strict=True))


def counters() -> dict[str, int]:
    """Return how often each entry point was called since :func:`reset_counters`.

    Returns
    -------
    dict
        From every modelled name to its count, zeros included. Calls of other threads and
        of PyTorch itself count, too.

    Raises
    ------
    RuntimeError
        This process does not run over the simulated device. So does every function here
        but :func:`active`.
    """
    return {name: total - _zero.get(name, 0) for name, total in _totals().items()}


def reset_counters() -> None:
    """Let :func:`counters` start from zero."""
    _zero.update(_totals())


class Counts(Mapping[str, int]):
    """Calls made in the block of :func:`count`, by name; only those that were made.

    Asking for a modelled name that was not called gives 0, for any other name KeyError.
    """

    def __init__(self) -> None:
        self._before = _totals()
        self._after: dict[str, int] | None = None

    def _stop(self) -> None:
        self._after = _totals()

    def _made(self) -> dict[str, int]:
        after = self._after if self._after is not None else _totals()
        return {name: after[name] - n for name, n in self._before.items() if after[name] != n}

    def __getitem__(self, name: str) -> int:
        if name not in self._before:
            raise KeyError(f"{name!r} is not an entry point of the simulated device")
        return self._made().get(name, 0)

    def __contains__(self, name: object) -> bool:
        return name in self._made()

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())

    def __repr__(self) -> str:
        return f"Counts({self._made()})"

    def total(self) -> int:
        """Return the number of all calls."""
        return sum(self._made().values())


@contextmanager
def count() -> Iterator[Counts]:
    """Count the calls made in a block.

    Yields
    ------
    Counts
        A mapping from names to counts; it may be read in the block and after it.
    """
    counts = Counts()
    try:
        yield counts
    finally:
        counts._stop()


class Recorded(list[Call]):
    """The calls of a :func:`record` block, filled in when it ends.

    Attributes
    ----------
    dropped
        Calls that found the record full.
    """

    dropped: int = 0

    def names(self) -> list[str]:
        """Return the names of the calls, in order."""
        return [call.name for call in self]


@contextmanager
def record(*, limit: int = 10_000) -> Iterator[Recorded]:
    """Record the calls made in a block, by all threads, in order.

    Parameters
    ----------
    limit
        How many calls to keep; later ones are only counted, in ``dropped``.

    Yields
    ------
    Recorded
        A list of :class:`Call`, empty until the block ends. Blocks do not nest: an inner
        one ends the outer one's record, as it does the record of ``--record``.
    """
    if limit < 0:
        raise ValueError(f"limit must be >= 0, got {limit}")
    sim = _sim()
    recorded = Recorded()
    sim.staging_sim_record_start(limit)
    try:
        yield recorded
    finally:
        sim.staging_sim_record_stop()
        entries = (_CallEntry * limit)()
        n = sim.staging_sim_record_read(entries, 0, limit)
        recorded.dropped = sim.staging_sim_record_dropped()
        recorded.extend(
            Call(
                name=entry.name.decode(),
                stream=entry.stream,
                nbytes=entry.nbytes,
                kind=_KINDS[entry.kind] if 0 <= entry.kind < len(_KINDS) else "",
                result=entry.result,
                device=entry.device,
                thread=entry.thread,
            )
            for entry in entries[:n]
        )


# -- faults -------------------------------------------------------------------------------


@contextmanager
def fault(
    call: str,
    *,
    nth: int = 1,
    code: int = 999,
    sticky: bool = False,
    deferred: bool = False,
    library: str | None = None,
) -> Iterator[Fault]:
    """Let the ``nth`` call of a name in a block fail.

    Parameters
    ----------
    call
        The entry point, such as ``"cudaEventCreateWithFlags"``.
    nth
        Which one, from 1. Calls of other threads count, too, and those of PyTorch unless
        ``library`` leaves them out.
    code
        The ``cudaError_t`` that it returns; 2 is ``cudaErrorMemoryAllocation``, 999
        ``cudaErrorUnknown``.
    sticky
        Whether the error destroys the context: every later call in the process fails the
        same way, enqueued work is dropped, and nothing repairs that.
    deferred
        The call succeeds, and what it enqueued fails when it runs, as an illegal access on
        a device does. Such an error is always sticky.
    library
        Part of the path of the shared library (or program) whose calls count, such as
        ``"libc10_cuda"``; of the extension of this package with ``staging.extension._C.__file__``.
        PyTorch's guards end the process where a call of theirs fails. By default every
        caller counts.

    Yields
    ------
    Fault
        Its ``happened`` says after the block whether the call came.

    Raises
    ------
    ValueError
        There is no such entry point, or ``nth`` or ``code`` is not positive.
    """
    sim = _sim()
    number = sim.staging_sim_fault_add_in(
        (library or "").encode(), call.encode(), nth, code, int(sticky), int(deferred)
    )
    if number < 0:
        raise ValueError(
            f"call must be a modelled entry point, nth and code must be > 0, "
            f"got call={call!r}, nth={nth}, code={code}"
        )
    result = Fault(call, nth, code)
    try:
        yield result
    finally:
        result.happened = sim.staging_sim_fault_remove(number) > 0


# -- schedules ----------------------------------------------------------------------------


def current_policy() -> tuple[str, int]:
    """Return the policy's name and its seed."""
    sim = _sim()
    return sim.staging_sim_policy().decode(), int(sim.staging_sim_seed())


def set_policy(name: Policy, *, seed: int = 0) -> None:
    """Choose when enqueued work runs from now on.

    Waits until everything that is enqueued has run.

    Parameters
    ----------
    name
        ``"eager"``, ``"lazy"``, ``"random"``, ``"threads"`` or ``"null"``; see
        ``python -m staging sim --help``.
    seed
        Of the schedule's choices.

    Raises
    ------
    ValueError
        There is no such policy.
    RuntimeError
        A held stream has work.
    """
    sim = _sim()
    if name not in ("eager", "lazy", "random", "threads", "null"):
        raise ValueError(f"name must be eager, lazy, random, threads or null, got {name!r}")
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")
    if sim.staging_sim_set_policy(name.encode(), seed) != 0:
        raise RuntimeError("a held stream has work: release it before the policy is changed")


@contextmanager
def policy(name: Policy, *, seed: int = 0) -> Iterator[None]:
    """Choose when enqueued work runs in a block; as :func:`set_policy`, undone at the end."""
    before, before_seed = current_policy()
    set_policy(name, seed=seed)
    try:
        yield
    finally:
        set_policy(before, seed=before_seed)  # type: ignore[arg-type]


@contextmanager
def progress(idle_ms: int) -> Iterator[None]:
    """Set after how long without a call pending work runs on its own, in a block.

    Parameters
    ----------
    idle_ms
        In milliseconds; 50 by default. 0: never, so that only waits, polls, :func:`run_one`
        and :func:`run_all` run work, and a test does not depend on time.
    """
    if idle_ms < 0:
        raise ValueError(f"idle_ms must be >= 0, got {idle_ms}")
    sim = _sim()
    before = sim.staging_sim_set_progress_ms(idle_ms)
    try:
        yield
    finally:
        sim.staging_sim_set_progress_ms(before)


def pending() -> int:
    """Return how many pieces of enqueued work have not run yet."""
    return int(_sim().staging_sim_pending())


def run_one() -> bool:
    """Run one piece of ready work; return whether there was any."""
    return bool(_sim().staging_sim_run_one())


def run_all() -> None:
    """Run everything that is enqueued, and wait for host functions to return."""
    _sim().staging_sim_run_all()


@contextmanager
def hold(stream: int) -> Iterator[None]:
    """Keep a stream from running anything in a block: a stalled stream.

    Parameters
    ----------
    stream
        Its handle, as ``torch.cuda.Stream.cuda_stream``; 0 for the default stream of the
        current device. Whoever waits for the stream in the block waits for ever.
    """
    sim = _sim()
    if sim.staging_sim_hold(stream, 1) != 0:
        raise ValueError(f"stream must be a stream's handle, got {stream}")
    try:
        yield
    finally:
        sim.staging_sim_hold(stream, 0)


# -- what went wrong, and what is alive ---------------------------------------------------


def reports() -> list[Report]:
    """Return the misuse that was found since :func:`clear_reports`."""
    sim = _sim()
    kind, message = ctypes.create_string_buffer(64), ctypes.create_string_buffer(4096)
    result = []
    for i in range(sim.staging_sim_report_count()):
        if sim.staging_sim_report(i, kind, len(kind), message, len(message)) == 0:
            result.append(Report(kind.value.decode(), message.value.decode(errors="replace")))
    return result


def clear_reports() -> None:
    """Forget what :func:`reports` returns."""
    _sim().staging_sim_report_clear()


def objects() -> Objects:
    """Return how many events, streams, allocations and so on are alive."""
    raw = _Objects()
    _sim().staging_sim_objects(ctypes.byref(raw))
    return Objects(**{field.name: int(getattr(raw, field.name)) for field in fields(Objects)})


def lost() -> int:
    """Return the error that destroyed the context, 0 if none did."""
    return int(_sim().staging_sim_lost())


def recover() -> None:
    """Repair a context that a sticky fault destroyed, for the next test.

    What was enqueued is lost. Nothing in CUDA does this: a process has to be restarted.
    """
    _sim().staging_sim_recover()


def context_active(device: int) -> bool:
    """Return whether the device's primary context exists; asking does not make it."""
    return bool(_sim().staging_sim_context_active(device))


def protection() -> str:
    """Return how device memory is kept from the host: ``"pkey"`` or ``"mprotect"``."""
    return str(_sim().staging_sim_protection().decode())
