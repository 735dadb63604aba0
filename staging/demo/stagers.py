"""How a step's arrays get to the device: one class for each way of doing it.

A stager owns the host arrays that the step is built in and the device arrays that it is
read from. The loop knows nothing more of it than ``Stager`` says, so a further way is a
further class and an entry in ``STAGERS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch

from staging import CpuGpuBuffer, StagingGroup
from staging.demo.inputs import HostArrays, InputSpec


class Stager(Protocol):
    """A way of staging a step's inputs.

    Parameters
    ----------
    specs : sequence of InputSpec
        The inputs.
    device : torch.device
        Where they are staged to.

    Attributes
    ----------
    name : str
        As it is listed.
    """

    name: ClassVar[str]

    def __init__(self, specs: Sequence[InputSpec], device: torch.device) -> None: ...

    @property
    def device(self) -> Mapping[str, torch.Tensor]:
        """Where the device reads each input; the same tensors in every step."""
        ...

    def host(self) -> HostArrays:
        """Return the arrays to build the next step in.

        Asked for anew before each step, since a stager may have to wait before it can
        hand them out. What the step before has written into them is still there.
        """
        ...

    def stage(self, used: Mapping[str, int]) -> None:
        """Enqueue, on the current stream, the copies of each input's first rows.

        This is what the demo measures. It does not wait for the copies; once it has
        returned, the loop writes the next step over the host arrays.
        """
        ...


class PlainBuffer:
    """The usual pattern, for comparison: a pinned tensor, a device tensor and ``copy_``."""

    def __init__(self, *size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.cpu = torch.zeros(*size, dtype=dtype, pin_memory=device.type == "cuda")
        self.gpu = torch.zeros(*size, dtype=dtype, device=device)
        self.np: npt.NDArray[Any] = self.cpu.numpy()

    def copy_to_gpu(self, n: int) -> torch.Tensor:
        """Enqueue the copy of the first ``n`` rows, which reads the host array when it runs."""
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)


class PlainStager:
    """A ``PlainBuffer`` for each input, one ``copy_`` each."""

    name: ClassVar[str] = "plain"

    def __init__(self, specs: Sequence[InputSpec], device: torch.device) -> None:
        self._buffers = {
            spec.name: PlainBuffer(*spec.shape, dtype=torch_dtype(spec), device=device)
            for spec in specs
        }
        self._device = {name: buffer.gpu for name, buffer in self._buffers.items()}

    @property
    def device(self) -> Mapping[str, torch.Tensor]:
        """Return the buffers' device tensors."""
        return self._device

    def host(self) -> HostArrays:
        """Return the pinned arrays, whether or not a copy still reads them."""
        return {name: buffer.np for name, buffer in self._buffers.items()}

    def stage(self, used: Mapping[str, int]) -> None:
        """Enqueue one copy for each input."""
        buffers = self._buffers
        for name, rows in used.items():
            buffers[name].copy_to_gpu(rows)


class BufferStager:
    """A ``staging.CpuGpuBuffer`` for each input, one ``copy_to_gpu`` each."""

    name: ClassVar[str] = "staging"

    def __init__(self, specs: Sequence[InputSpec], device: torch.device) -> None:
        self._buffers = {
            spec.name: CpuGpuBuffer(*spec.shape, dtype=torch_dtype(spec), device=device)
            for spec in specs
        }
        self._device = {name: buffer.gpu for name, buffer in self._buffers.items()}

    @property
    def device(self) -> Mapping[str, torch.Tensor]:
        """Return the buffers' device tensors."""
        return self._device

    def host(self) -> HostArrays:
        """Return the buffers' host arrays, which no copy reads any more."""
        return {name: buffer.np for name, buffer in self._buffers.items()}

    def stage(self, used: Mapping[str, int]) -> None:
        """Enqueue one copy for each input."""
        buffers = self._buffers
        for name, rows in used.items():
            buffers[name].copy_to_gpu(rows)


class GroupStager:
    """A ``staging.StagingGroup`` of all inputs, one ``copy_to_gpu`` a step."""

    name: ClassVar[str] = "group"

    def __init__(self, specs: Sequence[InputSpec], device: torch.device) -> None:
        self._group = StagingGroup(
            device, {spec.name: (spec.shape, torch_dtype(spec)) for spec in specs}
        )
        self._device = {name: member.gpu for name, member in self._group.items()}

    @property
    def device(self) -> Mapping[str, torch.Tensor]:
        """Return the members' device tensors."""
        return self._device

    def host(self) -> HostArrays:
        """Return the members' host arrays, which no copy reads any more."""
        return {name: member.np for name, member in self._group.items()}

    def stage(self, used: Mapping[str, int]) -> None:
        """Enqueue one copy of all inputs."""
        self._group.copy_to_gpu(used)


def torch_dtype(spec: InputSpec) -> torch.dtype:
    """Return the torch dtype of an input."""
    return torch.from_numpy(np.empty(0, spec.dtype)).dtype


# In the order in which they run and are listed. The plain one is what the others are
# compared with; a wrong step of any other one is a failure of the demo.
STAGERS: tuple[type[Stager], ...] = (PlainStager, BufferStager, GroupStager)
