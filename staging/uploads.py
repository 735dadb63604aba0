"""The pinned slots through which host-to-device copies pass."""

from __future__ import annotations

from dataclasses import dataclass

from staging.arguments import device_argument, int_argument
from staging.extension import _C, torch


@dataclass(frozen=True)
class UploadStats:
    """The upload rings of one device.

    Attributes
    ----------
    capacity_nbytes
        Pinned memory that the rings hold now, in bytes. Large copies and fills use blocks of
        the pinned pool besides, for as long as they are in flight.
    in_flight_nbytes, in_flight_slots
        Slots that are not free again, and their bytes.
    waits, waited_us
        How often a copy had to wait because the limit was reached, and how long, in
        microseconds.
    limit_nbytes
        See :func:`set_upload_limit`.
    events, idle_events
        CUDA events made for copies, and those of them that nobody uses.
    """

    capacity_nbytes: int
    in_flight_nbytes: int
    in_flight_slots: int
    waits: int
    waited_us: int
    limit_nbytes: int
    events: int
    idle_events: int


def set_upload_limit(nbytes: int) -> None:
    """Set how much the snapshots and fills of each device may have in flight.

    Where a copy would exceed it, it waits for the oldest one on its stream: backpressure
    instead of unbounded pinned memory. A stalled stream holds up no other: each may have 64 KiB
    in flight, and one copy of any size, whatever the others have. A copy that is larger than
    half the limit may be in flight twice.

    Parameters
    ----------
    nbytes
        In bytes, for each device, all of its streams together; 64 MiB by default, 256 KiB at
        least.

    Raises
    ------
    ValueError
        ``nbytes`` is negative.
    """
    _C.set_upload_limit(int_argument(nbytes, "nbytes", least=0))


def upload_stats(device: torch.device | str | int = "cuda") -> UploadStats:
    """Return figures about the upload rings of a device, summed over its streams.

    Asks the runtime which copies are complete; waits for nothing.

    Parameters
    ----------
    device
        A CUDA device; the current one by default.
    """
    return UploadStats(*_C.upload_stats(_index(device)))


def _index(device: torch.device | str | int) -> int:
    place = device_argument(device, "cuda")
    return torch.cuda.current_device() if place.index is None else place.index
