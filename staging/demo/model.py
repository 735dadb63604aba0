"""What stands for the model: work that keeps a real device busy between two steps."""

from __future__ import annotations

import torch

_SIZE = 2048  # of the square matrices


class Model:
    """Multiplies matrices on the current stream for about ``step_ms`` in each step.

    A device that has nothing to do runs every copy at once, and then even a race comes out
    right. In a server it has: the copies of a step wait behind the model of the step before.

    Parameters
    ----------
    device : torch.device
        A CUDA device. The constructor measures it, and waits for that.
    step_ms : float
        Of device time in a step.
    """

    def __init__(self, device: torch.device, *, step_ms: float) -> None:
        self._a = torch.ones((_SIZE, _SIZE), dtype=torch.float16, device=device)
        self._out = torch.empty_like(self._a)
        start, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        trials = 10
        with torch.cuda.device(device):
            self._multiply(trials)  # the library loads itself on first use
            start.record()
            self._multiply(trials)
            end.record()
            end.synchronize()
        self._count = max(1, round(step_ms / (start.elapsed_time(end) / trials)))

    def forward(self) -> None:
        """Enqueue one step's work. Waits for nothing."""
        self._multiply(self._count)

    def _multiply(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self._a, self._a, out=self._out)
