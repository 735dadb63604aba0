"""Where the demo runs: a GPU, the simulated device, or the CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from staging import sim
from staging.sim import cli as sim_cli

if TYPE_CHECKING:
    import torch

Kind = Literal["cuda", "simulated", "cpu"]


def _no_counters() -> dict[str, int]:
    return {}


@dataclass(frozen=True)
class Place:
    """A device, and how to speak of it.

    Attributes
    ----------
    device
        For torch.
    kind
        "cuda" is a GPU; a simulated one is a CUDA device to torch, too.
    name
        The device's own, for people.
    policy
        The simulated device's schedule.
    counters
        The runtime calls so far, by name; empty where nobody counts them.
    """

    device: torch.device
    kind: Kind
    name: str
    policy: str | None = None
    counters: Callable[[], dict[str, int]] = _no_counters

    def require_transfers(self) -> None:
        """Raise NoDevice where the schedule moves no bytes, so that there is nothing to check."""
        if self.policy == "null":
            raise NoDevice(
                "the simulated device's policy is null, which executes no transfer: there is "
                "nothing to check. Choose another: python -m staging sim --policy lazy …"
            )

    @property
    def caveat(self) -> str:
        """What the host time measured here is, and what it is not."""
        if self.kind == "simulated":
            return (
                "It was taken on this CPU, calling a simulated CUDA runtime: it compares the "
                "loops with each other. Simulated host times are not device times."
            )
        if self.kind == "cuda":
            return "It was taken on this CPU, calling CUDA. No device time is measured."
        return (
            "There is no device: a copy on the CPU is done when it returns, so that nothing can "
            "race, and host time includes the copying itself."
        )


class NoDevice(RuntimeError):
    """The device that was asked for is not there; the text says what to do."""


def find(requested: str) -> Place:
    """Return the place for ``--device``.

    Parameters
    ----------
    requested
        "cuda", "cpu", or "auto" for the first of the two that is there.

    Raises
    ------
    NoDevice
        "cuda", and there is none, or the extension was built without CUDA.
    """
    import torch

    if requested != "cpu":
        problem = _no_cuda_because()
        if problem is None:
            return _cuda_place()
        if requested == "cuda":
            raise NoDevice(
                f"--device cuda: {problem}. --device auto takes what there is; "
                "'python -m staging sim --policy lazy python -m staging demo' runs over the "
                "simulated device, where the package was built with CUDA"
            )
    return Place(torch.device("cpu"), "cpu", "CPU")


def rerun_over_simulated_device(requested: str, arguments: Sequence[str], *, seed: int) -> None:
    """Replace this process by the same demo over the simulated device, where that is due.

    It is due for "auto" on a machine without a GPU where the simulated device was built.
    Otherwise this returns.

    Parameters
    ----------
    requested
        The value of ``--device``.
    arguments
        The demo's, all of them.
    seed
        Of the schedule.
    """
    if requested != "auto" or sim.active() or driver_has_device():
        return
    try:
        environment = sim_cli.environment(policy="lazy", seed=seed)
    except FileNotFoundError:
        print("staging demo: no GPU and no simulated device here: on the CPU", file=sys.stderr)
        return
    print(
        "staging demo: no GPU here: over the simulated device, with the schedule lazy",
        file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", "staging", "demo", *arguments]
    os.execve(sys.executable, command, environment)


def _no_cuda_because() -> str | None:
    import torch

    from staging.extension import _C

    if not _C.built_with_cuda:
        return "the extension was built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    return None


def _cuda_place() -> Place:
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    name = torch.cuda.get_device_name(device)
    if not sim.active():
        return Place(device, "cuda", name)
    policy, _ = sim.current_policy()
    return Place(device, "simulated", name, policy, sim.counters)


def driver_has_device() -> bool:
    """Ask the CUDA driver for a device, without torch: loading that takes seconds."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        return (
            driver.cuInit(0) == 0
            and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
            and count.value > 0
        )
    except (OSError, AttributeError):
        return False
