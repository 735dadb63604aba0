"""What the device saw: a log of every step's inputs, compared with what the host meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from staging.demo.inputs import HostArrays, InputSpec

_ALIGNMENT = 16  # of an input's place in a step of the log, in bytes
_EXCERPT = 64  # values of a mismatch that are kept for people


@dataclass(frozen=True)
class Mismatch:
    """A place where the device read something else than the host meant.

    Attributes
    ----------
    step
        From 0.
    input
        Which array.
    index
        Of the first wrong value in the flattened array.
    meant, read : tuple
        Values from ``index`` on, as the host meant and as the device read them.
    """

    step: int
    input: str
    index: int
    meant: tuple[float | int, ...]
    read: tuple[float | int, ...]


@dataclass
class Findings:
    """What the comparison of all steps so far has shown."""

    checked_steps: int = 0
    checked_bytes: int = 0
    wrong_steps: int = 0
    wrong_bytes: int = 0
    wrong_inputs: Counter[str] = field(default_factory=Counter)  # input -> steps it was wrong in
    first: Mismatch | None = None


class DeviceReader:
    """Copies each step's inputs into a log on the device, in stream order.

    It stands for the kernels of a model: whatever they would have read, it reads, at the
    same place in the stream. Beside the log it keeps the bytes that the host meant.

    Parameters
    ----------
    specs : sequence of InputSpec
        The inputs.
    arrays : mapping of str to torch.Tensor
        Where the device reads them.
    steps : int
        How many steps the log holds. Before it is full, ``check`` must empty it.

    Attributes
    ----------
    findings : Findings
        Of all steps that were checked.
    """

    def __init__(
        self, specs: Sequence[InputSpec], arrays: Mapping[str, torch.Tensor], *, steps: int
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.findings = Findings()
        self._specs = specs
        self._offsets: dict[str, int] = {}
        size = 0
        for spec in specs:
            self._offsets[spec.name] = size
            size += -(-spec.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._bytes = {spec.name: arrays[spec.name].flatten().view(torch.uint8) for spec in specs}
        device = next(iter(arrays.values())).device
        self._log = torch.zeros((steps, size), dtype=torch.uint8, device=device)
        self._meant = np.zeros((steps, size), dtype=np.uint8)
        self._used: list[Mapping[str, int]] = []

    @property
    def full(self) -> bool:
        """Whether the log must be checked before the next step."""
        return len(self._used) == len(self._meant)

    def record(self, host: HostArrays, used: Mapping[str, int]) -> None:
        """Read the step's inputs on the device, behind the copies on the current stream.

        Parameters
        ----------
        host
            The host arrays as they are now: what the host means.
        used
            How many rows of each input the step uses.

        Notes
        -----
        Waits for nothing: the copies are from device memory to device memory.

        Raises
        ------
        RuntimeError
            The log is full.
        """
        if self.full:
            raise RuntimeError(f"the log holds {len(self._meant)} steps; check() empties it")
        at = len(self._used)
        log, meant = self._log[at], self._meant[at]
        for spec in self._specs:
            start = self._offsets[spec.name]
            rows = used[spec.name]
            nbytes = rows * spec.row_nbytes
            meant[start : start + nbytes] = host[spec.name][:rows].reshape(-1).view(np.uint8)
            log[start : start + nbytes].copy_(self._bytes[spec.name][:nbytes], non_blocking=True)
        self._used.append(used)

    def check(self) -> Findings:
        """Wait for the device, compare all bytes in the log, and empty it."""
        read = self._log[: len(self._used)].cpu().numpy()
        for at, used in enumerate(self._used):
            self._check_step(self._meant[at], read[at], used)
        self._used.clear()
        return self.findings

    def _check_step(
        self,
        meant: npt.NDArray[np.uint8],
        read: npt.NDArray[np.uint8],
        used: Mapping[str, int],
    ) -> None:
        found = self.findings
        wrong_bytes = 0
        for spec in self._specs:
            start = self._offsets[spec.name]
            region = slice(start, start + used[spec.name] * spec.row_nbytes)
            found.checked_bytes += region.stop - region.start
            differs = meant[region] != read[region]
            wrong = int(np.count_nonzero(differs))
            if wrong:
                wrong_bytes += wrong
                found.wrong_inputs[spec.name] += 1
                if found.first is None:
                    index = int(differs.argmax()) // spec.dtype.itemsize
                    excerpt = slice(index, index + _EXCERPT)
                    found.first = Mismatch(
                        step=found.checked_steps,
                        input=spec.name,
                        index=index,
                        meant=tuple(meant[region].view(spec.dtype)[excerpt].tolist()),
                        read=tuple(read[region].view(spec.dtype)[excerpt].tolist()),
                    )
        found.wrong_bytes += wrong_bytes
        found.wrong_steps += wrong_bytes > 0
        found.checked_steps += 1
