"""Many buffers that are staged together: one call, one transfer or launch, one event."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from math import prod
from typing import Any

from staging import cost_table
from staging.arguments import device_argument, flag_argument, shape_argument, shown
from staging.buffer import CpuGpuBuffer, host_zeros, ml_dtype_of
from staging.extension import _C, torch

# A member begins at a multiple of this many bytes, on both sides: GroupCopies::kAlignment.
_ALIGNMENT = 256

Prefixes = Mapping["CpuGpuBuffer | str", "int | None"]


@dataclass(frozen=True)
class GroupStats:
    """What a group has copied; its members' own copies are in their ``stats()``.

    Attributes
    ----------
    copies_to_gpu, copies_to_cpu
        Calls that copied something.
    bytes_to_gpu, bytes_to_cpu
        The bytes of the members that they named.
    operations
        Transfers, batches and kernel launches that this took.
    waits, waited_us
        How often a copy waited because the stream had too much in flight, and how long, in
        microseconds.
    """

    copies_to_gpu: int
    copies_to_cpu: int
    bytes_to_gpu: int
    bytes_to_cpu: int
    operations: int
    waits: int
    waited_us: int


class GroupBuffer(CpuGpuBuffer):
    """A member of a group: a ``CpuGpuBuffer`` whose arrays lie in the group's arenas.

    Made by `StagingGroup`. Its own copies come in order with the group's. Its policy is
    "snapshot": a call takes the bytes of all members that it names into one pinned slot.
    """

    __slots__ = ()

    def __init__(
        self,
        group: StagingGroup,
        cpu: torch.Tensor,
        gpu: torch.Tensor,
        *,
        pin: bool,
        with_numpy: bool,
        name: str,
    ) -> None:
        ml_dtype = ml_dtype_of(cpu.dtype) if with_numpy else None
        self._set_up(
            cpu,
            gpu,
            pin=pin,
            with_numpy=with_numpy,
            ml_dtype=ml_dtype,
            reuse="snapshot",
            name=name,
            group=group,
        )


class StagingGroup(_C.Group):
    """Buffers in one host arena and one device arena, staged by one call.

    A model runner stages some twenty arrays in each step. In a group that is one call of a
    few microseconds and one transfer or kernel launch, instead of one ``copy_`` each.

    Parameters
    ----------
    device : torch.device or str or int
        Where the members' ``gpu`` are. On ``cpu`` and ``meta`` copies are immediate and
        nothing is pinned.
    members : mapping
        Name -> ``(shape, dtype)``, with the shape as for `CpuGpuBuffer`: an int or a tuple.
        Members that are staged together, and whole, are best neighbours.
    pin_memory : bool, optional
        Pin the host arena. By default where ``device`` is a CUDA device.
    with_numpy : bool
        Make the members' ``np``.
    keep_tails : bool
        Write only the rows that a call names. Where False, ``copy_to_gpu`` may also write
        rows of a named member behind those, with the host's values: it then copies a whole
        part of the arena where that is cheaper than the prefixes in it.
    name : str
        For profilers, see ``staging.nvtx_ranges``; a member is ``<name>.<its name>``.

    Attributes
    ----------
    nbytes : int
        The size of each of the two arenas, in bytes.

    Raises
    ------
    ValueError
        A shape or a dtype that cannot be; see `CpuGpuBuffer`.
    RuntimeError
        The current stream of the device captures a CUDA graph.

    Notes
    -----
    A group is a mapping from names to members, which are buffers with the whole interface of
    `CpuGpuBuffer`. Their ``cpu``, ``np`` and ``gpu`` have fixed addresses, so that CUDA graphs
    and long-lived references hold. They are tensors of their own, with version counters of
    their own, that share a storage. The device arena comes from PyTorch's allocator.

    The group orders its copies among themselves and with its members' own, on whatever streams
    they are: a copy of the group comes after those of the members that it names, a member's
    copy after the group's. Members that a call does not name are not waited for.

    A group may be used from several threads at once; whose copy comes first is theirs to
    decide.

    Examples
    --------
    >>> group = StagingGroup("cuda", {
    ...     "tokens": (8192, torch.int32),
    ...     "block_table": ((256, 128), torch.int32),
    ... })
    >>> tokens = group["tokens"]
    >>> tokens.np[:3] = [5, 7, 9]
    >>> group.copy_to_gpu({tokens: 3, "block_table": 17})
    """

    nbytes: int

    def __init__(
        self,
        device: torch.device | str | int,
        members: Mapping[str, tuple[int | tuple[int, ...], torch.dtype]],
        *,
        pin_memory: bool | None = None,
        with_numpy: bool = True,
        keep_tails: bool = True,
        name: str = "",
    ) -> None:
        place = device_argument(device, "cuda", "cpu", "meta")
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {shown(name)}")
        with_numpy = flag_argument(with_numpy, "with_numpy")
        keep_tails = flag_argument(keep_tails, "keep_tails")
        if pin_memory is not None:
            pin_memory = flag_argument(pin_memory, "pin_memory")
        on_cuda = place.type == "cuda"
        pin = on_cuda if pin_memory is None else pin_memory and on_cuda
        layout = _layout(members)
        self.nbytes = layout[-1].end if layout else 0
        # Ordinary mutable tensors, even where the constructor runs inside inference mode.
        with torch.inference_mode(False), torch.no_grad():
            # The device first: pinned memory then belongs to its context.
            gpu = torch.zeros(self.nbytes, dtype=torch.uint8, device=place)
            cpu = host_zeros(self.nbytes, torch.uint8, pin=pin, near=gpu.device)
            super().__init__(cpu, gpu, pin, keep_tails, name)
            self._members: dict[str, GroupBuffer] = {}
            for slot in layout:
                member = GroupBuffer(
                    self,
                    slot.view(cpu),
                    slot.view(gpu),
                    pin=pin,
                    with_numpy=with_numpy,
                    name=f"{name}.{slot.name}" if name else slot.name,
                )
                self._add_member(slot.name, member, slot.offset)
                self._members[slot.name] = member
        if on_cuda:
            cost_table.use_stored(gpu.device.index)

    def refill(
        self, prefixes: Prefixes | None = None, *, stream: torch.cuda.Stream | None = None
    ) -> None:
        """Give the next replays of a captured ``copy_to_gpu`` the host arrays' contents.

        Parameters
        ----------
        prefixes
            As for ``copy_to_gpu``: the members whose copies were captured.
        stream
            Where the replays run; the current stream of the group's device by default.

        Raises
        ------
        TypeError, ValueError
            As ``copy_to_gpu``.
        RuntimeError
            No copy of a named member was captured, or the stream captures.

        Notes
        -----
        Waits until the replays that were launched so far have read what they had.
        """
        self._refill(prefixes, stream)

    def stats(self) -> GroupStats:
        """Return what this group has copied so far."""
        return GroupStats(*self._stats())

    def __getitem__(self, name: str) -> GroupBuffer:
        """Return a member by its name."""
        try:
            return self._members[name]
        except KeyError:
            raise KeyError(
                f"{name!r} is no member of this group (its members: {', '.join(self._members)})"
            ) from None

    def __contains__(self, name: object) -> bool:
        """Whether there is a member of this name."""
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        """Iterate over the members' names, in the order of the arena."""
        return iter(self._members)

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def keys(self) -> KeysView[str]:
        """Return the members' names."""
        return self._members.keys()

    def values(self) -> ValuesView[GroupBuffer]:
        """Return the members."""
        return self._members.values()

    def items(self) -> ItemsView[str, GroupBuffer]:
        """Return names and members."""
        return self._members.items()

    def __repr__(self) -> str:
        """Size and members."""
        return f"StagingGroup({self.nbytes} bytes: {', '.join(self._members)})"


@dataclass(frozen=True)
class _Slot:
    """Where a member lies in the arenas."""

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The offset of what may follow."""
        nbytes = prod(self.shape) * self.dtype.itemsize
        return self.offset + -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def view(self, arena: torch.Tensor) -> torch.Tensor:
        """Return the member's tensor in an arena.

        It is not a view in autograd's sense: writing one member does not count as a change
        of the others.
        """
        tensor = torch.empty(0, dtype=self.dtype, device=arena.device)
        if arena.device.type == "meta":
            return tensor.new_empty(self.shape)
        strides = [prod(self.shape[d + 1 :]) for d in range(len(self.shape))]
        start = self.offset // self.dtype.itemsize
        return tensor.set_(arena.untyped_storage(), start, self.shape, strides)


def _layout(members: Mapping[str, Any]) -> list[_Slot]:
    slots: list[_Slot] = []
    if not isinstance(members, Mapping):
        raise TypeError(f"members must be a mapping of names, got {shown(members)}")
    for name, member in members.items():
        if not isinstance(name, str):
            raise TypeError(f"members must have names, got {name!r}")
        if not isinstance(member, tuple) or len(member) != 2:
            raise TypeError(f"members[{name!r}] must be a tuple (shape, dtype), got {member!r}")
        shape, dtype = member
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"members[{name!r}][1] must be a torch.dtype, got {dtype!r}")
        sizes = shape_argument((shape,), dtype, f"members[{name!r}][0]")
        slots.append(_Slot(name, slots[-1].end if slots else 0, sizes, dtype))
    return slots
