"""Drives buffers, groups and staged rows through everything at random; compares every byte.

A model of a buffer is two NumPy arrays: what the host array holds in the order of the
program, and what the device array holds in the order of the buffer's copies. A member of a
group is a buffer among others, which the group's copies concern, too. The model of a table of
staged rows is what was staged, and what was applied. Whatever the schedule, what is read must
be what the model has.

The driver keeps the rules that the buffers leave to their callers: a view that was taken
early is written only while nothing but snapshots is in flight; whoever else reads the device
array is put in order with streams and events, and known to its allocator (``record_stream``); a
refill comes before a replay.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from staging import sim

BUFFERS = 4
MEMBERS = 4  # of the group
TABLES = 2
DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32]
SHAPES = [(1,), (7,), (64,), (33, 3), (8, 2, 5), (512, 16)]
MAX_PENDING = 24


@dataclass
class Subject:
    """A buffer, its model, and what the driver remembers about it."""

    buffer: Any
    host: np.ndarray
    device: np.ndarray
    policy: str
    early: np.ndarray | None = None  # a view that may be written at once, if any
    graph: Any = None
    graph_out: Any = None
    stream: Any = None  # of its last copy, for readers of the device array
    readers: list[Any] = field(default_factory=list)  # events that the next copy waits for
    name: str = ""  # in the group, if it is a member


@dataclass
class Table:
    """A table of staged rows and its model."""

    rows: Any
    staged: np.ndarray
    device: np.ndarray
    stream: Any = None  # of its last application, for readers
    readers: list[Any] = field(default_factory=list)


@dataclass
class Pending:
    """Bytes on their way to the host, and what they must be."""

    get: Callable[[], np.ndarray]
    expected: np.ndarray
    what: str


class Driver:
    """One run; ``step(kind, seed)`` does one operation.

    Parameters
    ----------
    make
        Makes a buffer: ``make(*shape, dtype=, device=, **options)``.
    policies
        The ``reuse`` policies to use; empty for a class without policies.
    make_group, make_rows, apply_rows
        Make a group of some members, make a table, apply tables; None: there is none of those.
    """

    KINDS = (
        "write", "write", "write", "write_early", "to_gpu", "to_gpu", "to_gpu", "to_gpu",
        "to_cpu", "read", "read", "read_device", "fill", "fill_raises", "fetch", "fetch",
        "settle", "settle", "drop_pending", "drop", "hand_off", "capture", "replay", "replay",
        "zero_rows", "synchronize", "group_to_gpu", "group_to_gpu", "group_to_gpu",
        "group_to_cpu", "group_capture", "group_replay", "stage", "stage", "stage", "apply",
        "read_table", "drop_table", "overtake", "overtake_table",
    )  # fmt: skip

    def __init__(
        self,
        make: Callable[..., Any],
        policies: tuple[str, ...],
        *,
        make_group: Callable[..., Any] | None = None,
        make_rows: Callable[..., Any] | None = None,
        apply_rows: Callable[..., Any] | None = None,
    ) -> None:
        self.make = make
        self.policies = policies
        self.make_group = make_group
        self.make_rows = make_rows
        self.apply_rows = apply_rows
        self.group: Any = None
        self.group_graph: Any = None
        self.group_prefixes: dict[str, int] = {}  # of its captured copy
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.pending: list[Pending] = []
        self.other_thread = ThreadPoolExecutor(1)
        self.operations = 0
        self.trail: list[tuple[str, int]] = []
        rng = np.random.default_rng(0)
        self.subjects = [self._subject(rng) for _ in range(BUFFERS)]
        if make_group is not None:
            self.subjects += self._members(rng)
        self.tables = [self._table(rng) for _ in range(TABLES)] if make_rows is not None else []

    # -- operations -----------------------------------------------------------------------

    def step(self, kind: str, seed: int) -> None:
        """Do one operation; AssertionError where a byte is not the model's."""
        self.operations += 1
        self.trail.append((kind, seed))
        rng = np.random.default_rng(seed)
        index = int(rng.integers(len(self.subjects)))
        if kind.startswith("group_"):
            if self.group is not None:
                getattr(self, f"_{kind}")(rng)
            return
        if kind in ("stage", "apply", "read_table", "drop_table", "overtake_table"):
            if self.tables:
                getattr(self, f"_{kind}")(int(rng.integers(TABLES)), rng)
            return
        if not hasattr(self.subjects[index].buffer, "fill") and kind in (
            "fill", "fill_raises", "fetch", "capture", "replay",
        ):  # fmt: skip
            kind = "to_gpu"
        getattr(self, f"_{kind}")(index, rng)

    def finish(self) -> None:
        """Check everything that is left, and drop it."""
        for index in range(len(self.subjects)):
            self._read(index, np.random.default_rng(0))
            self._read_device(index, np.random.default_rng(0))
        for index in range(len(self.tables)):
            self._apply(index, np.random.default_rng(0))
            self._read_table(index, np.random.default_rng(0))
        while self.pending:
            self._settle(0, np.random.default_rng(0))
        self.subjects.clear()
        self.tables.clear()
        self.group = self.group_graph = None
        self.other_thread.shutdown()
        torch.cuda.synchronize()
        gc.collect()

    def _subject(self, rng: np.random.Generator) -> Subject:
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        policy = self.policies[int(rng.integers(len(self.policies)))] if self.policies else ""
        options: dict[str, Any] = {"reuse": policy} if policy else {}
        if policy == "snapshot" and rng.integers(4) == 0:
            options["pin_memory"] = False
        buffer = self.make(*shape, dtype=dtype, device="cuda", **options)
        self._after_zeros()
        zeros = np.zeros_like(buffer.np)
        return Subject(
            buffer, zeros, zeros.copy(), policy, buffer.np if policy in ("snapshot", "") else None
        )

    def _after_zeros(self) -> None:
        # They are written on the stream that is current; others come behind.
        for stream in self.streams[1:]:
            stream.wait_stream(self.streams[0])

    def _members(self, rng: np.random.Generator) -> list[Subject]:
        assert self.make_group is not None
        shapes = [SHAPES[int(rng.integers(len(SHAPES)))] for _ in range(MEMBERS)]
        dtypes = [DTYPES[int(rng.integers(len(DTYPES)))] for _ in range(MEMBERS)]
        self.group = self.make_group(
            "cuda",
            {f"m{i}": (shapes[i], dtypes[i]) for i in range(MEMBERS)},
            pin_memory=bool(rng.integers(4)),
        )
        self.group_graph = None
        self._after_zeros()
        subjects = []
        for name, member in self.group.items():
            zeros = np.zeros_like(member.np)
            subjects.append(Subject(member, zeros, zeros.copy(), "snapshot", member.np, name=name))
        return subjects

    def _table(self, rng: np.random.Generator) -> Table:
        assert self.make_rows is not None
        rows, cols = int(rng.integers(1, 12)), int(rng.integers(1, 300))
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        table = self.make_rows(rows, cols, dtype, "cuda")
        self._after_zeros()
        zeros = np.zeros((rows, cols), torch.zeros(0, dtype=dtype).numpy().dtype)
        return Table(table, zeros, zeros.copy())

    def _rows(self, subject: Subject, rng: np.random.Generator) -> int:
        rows = subject.host.shape[0]
        return rows if rng.integers(4) == 0 else int(rng.integers(1, rows + 1))

    def _values(self, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if array.dtype == np.bool_:
            return rng.integers(0, 2, array.shape).astype(np.bool_)
        return rng.integers(0, 127, array.shape).astype(array.dtype)

    def _stream(self, subject: Subject, rng: np.random.Generator) -> Any:
        stream = self.streams[int(rng.integers(len(self.streams)))]
        self._wait_for_readers(subject, stream)
        return stream

    @staticmethod
    def _wait_for_readers(written: Subject | Table, stream: Any) -> None:
        """Before what is written on ``stream``."""
        for event in written.readers:
            stream.wait_event(event)
        written.readers.clear()
        written.stream = stream

    def _on(self, stream: Any, call: Callable[..., Any], *args: Any) -> Any:
        with torch.cuda.stream(stream):
            return call(*args)

    def _write(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        if subject.policy == "unchecked":
            torch.cuda.synchronize()  # that is what its user has to do
        n = self._rows(subject, rng)
        values = self._values(subject.host[:n], rng)
        host = subject.buffer.np
        host[:n] = values
        subject.host[:n] = values
        if subject.policy in ("snapshot", ""):
            subject.early = host

    def _write_early(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        if subject.early is None:
            return
        values = self._values(subject.host, rng)
        subject.early[...] = values
        subject.host[...] = values

    def _to_gpu(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        n = self._rows(subject, rng)
        view = self._on(self._stream(subject, rng), subject.buffer.copy_to_gpu, n)
        assert tuple(view.shape) == subject.device[:n].shape
        subject.device[:n] = subject.host[:n]

    def _to_cpu(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        n = self._rows(subject, rng)
        self._on(self._stream(subject, rng), subject.buffer.copy_to_cpu, n)
        subject.host[:n] = subject.device[:n]
        subject.early = None  # not the host's before np has been read

    def _read(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        if subject.policy == "unchecked":
            torch.cuda.synchronize()
        host = subject.buffer.np if rng.integers(2) else subject.buffer.cpu.numpy()
        assert np.array_equal(host, subject.host), f"host array of buffer {index}"
        if subject.policy in ("snapshot", ""):
            subject.early = subject.buffer.np

    def _read_device(self, index: int, rng: np.random.Generator) -> None:
        """A stream-ordered reader of the device array that is not the buffer."""
        subject = self.subjects[index]
        reader = self.streams[int(rng.integers(len(self.streams)))]
        reader.wait_stream(subject.stream or self.streams[0])
        with torch.cuda.stream(reader):
            seen = self._clone(subject.buffer.gpu, reader)
            subject.readers.append(reader.record_event())
        self._add(
            Pending(lambda: self._to_host(seen, reader), subject.device.copy(), f"device {index}")
        )

    @staticmethod
    def _clone(tensor: torch.Tensor, stream: Any) -> torch.Tensor:
        """On the current stream; what it reads may be dropped before that has run."""
        tensor.record_stream(stream)
        return tensor.clone()

    @staticmethod
    def _to_host(seen: torch.Tensor, stream: Any) -> np.ndarray:
        with torch.cuda.stream(stream):
            result: np.ndarray = seen.cpu().numpy()
        return result

    def _fill(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        n = self._rows(subject, rng)
        values = self._values(subject.host[:n], rng)
        with torch.cuda.stream(self._stream(subject, rng)):
            with subject.buffer.fill(n) as rows:
                if rng.integers(4) == 0:  # others go on meanwhile
                    other = (index + 1) % len(self.subjects)
                    self._to_gpu(other, rng)
                rows[...] = values
        subject.device[:n] = values

    def _fill_raises(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        # Nothing is enqueued there, so it does not become the stream of the last copy.
        stream = self.streams[int(rng.integers(len(self.streams)))]
        try:
            with torch.cuda.stream(stream), subject.buffer.fill() as rows:
                rows[...] = 1
                raise KeyError
        except KeyError:
            pass

    def _fetch(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        n = self._rows(subject, rng)
        fetch = self._on(self._stream(subject, rng), subject.buffer.fetch, n)
        self._add(
            Pending(lambda: fetch.result().numpy(), subject.device[:n].copy(), f"fetch {index}")
        )

    def _add(self, pending: Pending) -> None:
        self.pending.append(pending)
        if len(self.pending) > MAX_PENDING:
            self._settle(0, np.random.default_rng(len(self.trail)))

    def _settle(self, index: int, rng: np.random.Generator) -> None:
        if self.pending:
            pending = self.pending.pop(int(rng.integers(len(self.pending))))
            assert np.array_equal(pending.get(), pending.expected), pending.what

    def _drop_pending(self, index: int, rng: np.random.Generator) -> None:
        if self.pending:
            self.pending.pop(int(rng.integers(len(self.pending))))

    def _drop(self, index: int, rng: np.random.Generator) -> None:
        """A buffer, or a group, goes, perhaps in flight, and another comes."""
        if self.subjects[index].name:
            self.subjects[BUFFERS:] = self._members(rng)
        else:
            self.subjects[index] = self._subject(rng)

    def _hand_off(self, index: int, rng: np.random.Generator) -> None:
        """Another thread uses the buffer; the two do not overlap."""
        kinds = ("write", "to_gpu", "to_cpu", "read", "fill", "fetch")
        kind = kinds[int(rng.integers(len(kinds)))]
        if not hasattr(self.subjects[index].buffer, "fill") and kind in ("fill", "fetch"):
            kind = "to_gpu"
        self.other_thread.submit(getattr(self, f"_{kind}"), index, rng).result()

    def _capture(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        if subject.policy == "unchecked":
            return  # its graph would read the host array
        stream = self.streams[1]
        subject.graph = torch.cuda.CUDAGraph()
        out = torch.zeros_like(subject.buffer.gpu)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            subject.graph.capture_begin(capture_error_mode="thread_local")
            out.copy_(subject.buffer.copy_to_gpu())
            subject.graph.capture_end()
        subject.graph_out = out

    def _replay(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        if subject.graph is None:
            return
        stream = self._stream(subject, rng)
        n = self._rows(subject, rng)
        with torch.cuda.stream(stream):
            # All of it, so that the model need not know what the slot held before.
            subject.buffer.refill()
            subject.graph.replay()
            seen = self._clone(subject.graph_out, stream)
        for other in self.streams:  # the next replay, on whatever stream, writes `out` again
            other.wait_stream(stream)
        subject.device[...] = subject.host
        expected = subject.device[:n].copy()
        self._add(Pending(lambda: self._to_host(seen[:n], stream), expected, f"replay {index}"))

    def _named(self, rng: np.random.Generator, names: list[str]) -> dict[str, tuple[Subject, int]]:
        """Some members, in any order, and how many rows of each."""
        count = int(rng.integers(1, len(names) + 1))
        chosen = [names[i] for i in rng.permutation(len(names))[:count]]
        members = {subject.name: subject for subject in self.subjects[BUFFERS:]}
        return {name: (members[name], self._rows(members[name], rng)) for name in chosen}

    def _group_call(
        self, rng: np.random.Generator, call: Callable[..., Any], named: dict[str, Any]
    ) -> None:
        stream = self.streams[int(rng.integers(len(self.streams)))]
        by_object = bool(rng.integers(2))
        prefixes = {}
        for name, (subject, rows) in named.items():
            self._wait_for_readers(subject, stream)
            whole = rows == len(subject.host) and rng.integers(2)
            prefixes[subject.buffer if by_object else name] = None if whole else rows
        self._on(stream, call, prefixes)

    def _group_to_gpu(self, rng: np.random.Generator) -> None:
        named = self._named(rng, list(self.group))
        self._group_call(rng, self.group.copy_to_gpu, named)
        for subject, n in named.values():
            subject.device[:n] = subject.host[:n]

    def _group_to_cpu(self, rng: np.random.Generator) -> None:
        named = self._named(rng, list(self.group))
        self._group_call(rng, self.group.copy_to_cpu, named)
        for subject, n in named.values():
            subject.host[:n] = subject.device[:n]
            subject.early = None

    def _group_capture(self, rng: np.random.Generator) -> None:
        named = self._named(rng, list(self.group))
        self.group_graph = torch.cuda.CUDAGraph()
        self.group_prefixes = {name: n for name, (_, n) in named.items()}
        stream = self.streams[1]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.group_graph.capture_begin(capture_error_mode="thread_local")
            self.group.copy_to_gpu(self.group_prefixes)
            self.group_graph.capture_end()

    def _group_replay(self, rng: np.random.Generator) -> None:
        if self.group_graph is None:
            return
        members = {subject.name: subject for subject in self.subjects[BUFFERS:]}
        stream = self.streams[int(rng.integers(len(self.streams)))]
        for name, n in self.group_prefixes.items():
            self._wait_for_readers(members[name], stream)
            members[name].device[:n] = members[name].host[:n]
        with torch.cuda.stream(stream):
            self.group.refill(self.group_prefixes)
            self.group_graph.replay()

    def _stage(self, index: int, rng: np.random.Generator) -> None:
        table = self.tables[index]
        rows, cols = table.staged.shape
        row, start = int(rng.integers(rows)), int(rng.integers(cols))
        count = int(rng.integers(cols - start + 1))
        values = self._values(table.staged[row, start : start + count], rng)
        table.rows.stage(row, start, torch.from_numpy(values) if rng.integers(2) else values)
        table.staged[row, start : start + count] = values
        values[...] = 0  # its bytes were taken

    def _apply(self, index: int, rng: np.random.Generator) -> None:
        stream = self.streams[int(rng.integers(len(self.streams)))]
        tables = self.tables if rng.integers(2) else [self.tables[index]]
        if not any(getattr(table.rows, "pending", True) for table in tables):
            # Enqueues nothing: what comes after the readers of then is not put behind this stream.
            self._on(stream, self.apply_rows, [table.rows for table in tables])
            return
        for table in tables:
            self._wait_for_readers(table, stream)
            table.device[...] = table.staged
        self._on(stream, self.apply_rows, [table.rows for table in tables])

    def _read_table(self, index: int, rng: np.random.Generator) -> None:
        table = self.tables[index]
        reader = self.streams[int(rng.integers(len(self.streams)))]
        reader.wait_stream(table.stream or self.streams[0])
        with torch.cuda.stream(reader):
            seen = self._clone(table.rows.gpu, reader)
            table.readers.append(reader.record_event())
        self._add(
            Pending(lambda: self._to_host(seen, reader), table.device.copy(), f"table {index}")
        )

    def _drop_table(self, index: int, rng: np.random.Generator) -> None:
        """A table goes, perhaps in flight or with writes left, and another comes."""
        self.tables[index] = self._table(rng)

    def overtake_all(self) -> None:
        """Overtake the copy of every buffer, member and table once."""
        rng = np.random.default_rng(0)
        for index in range(len(self.subjects)):
            self._overtake(index, rng)
        for index in range(len(self.tables)):
            self._overtake_table(index, rng)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Let nothing run on the driver's streams in a block, whatever the schedule."""
        torch.cuda.synchronize()  # what is in flight could fill a ring, which waits when it is full
        with ExitStack() as holds:
            for stream in self.streams:
                holds.enter_context(sim.hold(stream.cuda_stream))
            yield

    @staticmethod
    def _other(values: np.ndarray) -> np.ndarray:
        """Values of which none is what it was."""
        return (values == 0).astype(values.dtype)

    def _overtake(self, index: int, rng: np.random.Generator) -> None:
        """The host array is written while the copy before it cannot have run."""
        subject = self.subjects[index]
        if subject.policy not in ("snapshot", ""):
            return  # its host array may not be written now
        self._read(index, rng)
        assert subject.early is not None
        with self._held():
            if subject.name:
                self._group_call(
                    rng, self.group.copy_to_gpu, {subject.name: (subject, len(subject.host))}
                )
            else:
                self._on(self._stream(subject, rng), subject.buffer.copy_to_gpu, len(subject.host))
            subject.device[...] = subject.host
            subject.host[...] = subject.early[...] = self._other(subject.host)
        self._read_device(index, rng)

    def _overtake_table(self, index: int, rng: np.random.Generator) -> None:
        """A row is staged again while the copy of what was staged cannot have run."""
        table = self.tables[index]
        row = int(rng.integers(len(table.staged)))
        with self._held():
            self._apply(index, rng)
            values = self._other(table.staged[row])
            table.rows.stage(row, 0, values)
            table.staged[row] = values
        self._read_table(index, rng)

    def _zero_rows(self, index: int, rng: np.random.Generator) -> None:
        subject = self.subjects[index]
        subject.buffer.copy_to_gpu(0)
        subject.buffer.copy_to_cpu(0)

    def _synchronize(self, index: int, rng: np.random.Generator) -> None:
        torch.cuda.synchronize()
