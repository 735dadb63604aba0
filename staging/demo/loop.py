"""One step after another: schedule, build, stage, read; and what that cost the host."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from staging.demo.corpus import Request
from staging.demo.inputs import InputBuilder
from staging.demo.model import Model
from staging.demo.place import Place
from staging.demo.reader import DeviceReader, Findings
from staging.demo.request_table import Limits
from staging.demo.scheduler import Scheduler
from staging.demo.stagers import Stager

# The first steps pin memory and make events. They are checked like all others, but times
# and calls are those of the steps behind them, where there are enough.
WARM_UP_STEPS = 16


class Loop:
    """A runner's loop around one stager.

    Parameters
    ----------
    make : type of Stager
        Makes the stager from the input specs and the device.
    place : Place
        Where it runs.
    limits : Limits
        Of the scheduler.
    source : iterable of Request
        Where requests come from.
    ahead : int
        How many steps the host may be ahead of the device: before it builds a step it waits
        until the step that many before has run. A runner that schedules asynchronously is
        two ahead: it prepares a step while the device runs the one before.
    log_steps : int
        How many steps are read on the device before they are compared.
    model : Model or None
        Enqueued behind each step.

    Attributes
    ----------
    steps, tokens, staged_bytes : int
        So far.
    calls : Counter
        Runtime calls by name, in the staging part of the steps behind the warm-up.
    """

    def __init__(
        self,
        make: type[Stager],
        *,
        place: Place,
        limits: Limits,
        source: Iterable[Request],
        ahead: int = 2,
        log_steps: int = 32,
        model: Model | None = None,
    ) -> None:
        if ahead < 1:
            raise ValueError(f"ahead must be at least 1, got {ahead}")
        self.scheduler = Scheduler(limits, iter(source))
        self.builder = InputBuilder(limits)
        self.stager = make(self.builder.specs, place.device)
        self.name = self.stager.name
        self.steps = 0
        self.tokens = 0
        self.staged_bytes = 0
        self.calls: Counter[str] = Counter()
        self._place = place
        self._ahead = ahead
        self._model = model
        self._reader = DeviceReader(self.builder.specs, self.stager.device, steps=log_steps)
        self._row_nbytes = {spec.name: spec.row_nbytes for spec in self.builder.specs}
        self._events: deque[torch.cuda.Event] = deque()
        self._stage_ns: list[int] = []
        self._build_ns: list[int] = []

    @property
    def findings(self) -> Findings:
        """Of the steps that were compared."""
        return self._reader.findings

    @property
    def measured_steps(self) -> int:
        """How many steps the times and calls are of."""
        return len(self._stage_ns)

    @property
    def stage_us(self) -> npt.NDArray[np.float64]:
        """Host time of the staging part of each measured step, in µs."""
        return np.array(self._stage_ns, dtype=np.float64) / 1e3

    @property
    def build_us(self) -> npt.NDArray[np.float64]:
        """Host time of scheduling and building each measured step, in µs."""
        return np.array(self._build_ns, dtype=np.float64) / 1e3

    def run(self, steps: int, *, measure: bool = True) -> int:
        """Run up to ``steps`` steps, then compare what the device read of them.

        Returns
        -------
        int
            How many steps there were: fewer where the source is exhausted.
        """
        done = 0
        while done < steps and self._step(measure):
            done += 1
            if self._reader.full:
                self._reader.check()
        self._reader.check()
        self._events.clear()
        return done

    def close(self) -> None:
        """Drop the requests that still run."""
        self.scheduler.stop()

    def _step(self, measure: bool) -> bool:
        # As a runner does that waits for the tokens which the device has sampled.
        if len(self._events) >= self._ahead:
            self._events.popleft().synchronize()
        started = time.perf_counter_ns()
        batch = self.scheduler.schedule()
        if batch is None:
            return False
        host = self.stager.host()
        used = self.builder.build(self.scheduler.table, batch, host)
        built = time.perf_counter_ns()
        calls = self._place.counters() if measure else {}
        before = time.perf_counter_ns()
        self.stager.stage(used)
        after = time.perf_counter_ns()
        if measure:
            self._count_calls(calls, self._place.counters())
            self._build_ns.append(built - started)
            self._stage_ns.append(after - before)
        self._reader.record(host, used)
        if self._model is not None:
            self._model.forward()
        if self._place.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        self.scheduler.advance(batch)
        self.steps += 1
        self.tokens += batch.tokens
        self.staged_bytes += sum(rows * self._row_nbytes[name] for name, rows in used.items())
        return True

    def _count_calls(self, before: dict[str, int], after: dict[str, int]) -> None:
        for name, count in after.items():
            made = count - before.get(name, 0)
            if made:
                self.calls[name] += made


def run_beside(
    loops: Sequence[Loop],
    steps: int,
    *,
    chunk: int = 32,
    progress: Callable[[Loop], None] | None = None,
) -> None:
    """Run each loop for ``steps`` steps, in turns of ``chunk``.

    In turns, so that whatever else the machine does meets all of them alike; and a turn
    ends with the device idle, so that none of them runs the work of another.
    """
    warm_up = min(WARM_UP_STEPS, steps // 2)
    done = 0
    while done < steps:
        warming = done < warm_up
        count = min(chunk, (warm_up if warming else steps) - done)
        for loop in loops:
            loop.run(count, measure=not warming)
            if progress is not None:
                progress(loop)
        done += count
