"""Compares ways of doing one thing in one run: interleaved rounds, medians, ratios."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """The medians of several ways, in µs a call; the first is what the others are compared to."""

    title: str
    medians_us: dict[str, float]

    def ratio(self, name: str) -> float:
        """Median of ``name`` over the median of the first way."""
        return self.medians_us[name] / next(iter(self.medians_us.values()))

    def lines(self) -> list[str]:
        """Return the comparison as text, a line a way."""
        width = max(map(len, self.medians_us))
        lines = [self.title]
        for name, median in self.medians_us.items():
            lines.append(f"  {name:<{width}}  {median:10.3f} µs  {self.ratio(name):6.3f}x")
        return lines


def compare(
    title: str,
    ways: Mapping[str, Callable[[], object]],
    *,
    calls: int = 2000,
    rounds: int = 15,
    settle: Callable[[], object] = lambda: None,
) -> Comparison:
    """Time each way ``rounds`` times, in turns, so that a noisy moment meets all of them.

    Parameters
    ----------
    title
        What is compared, and on which device.
    ways
        Name to a function of no arguments. The first is the baseline.
    calls
        Calls a round.
    rounds
        Rounds a way; the median round counts.
    settle
        Called between rounds, outside the timing: drains the device, for instance.
    """
    if os.environ.get("STAGING_BENCH_QUICK") == "1":  # whether it runs, not how fast
        calls, rounds = max(1, calls // 20), 3
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():  # warm up
        for _ in range(max(1, calls // 4)):
            way()
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, way in ways.items():
                settle()
                start = time.perf_counter()
                for _ in range(calls):
                    way()
                times[name].append((time.perf_counter() - start) / calls * 1e6)
    finally:
        if gc_was_on:
            gc.enable()
    return Comparison(title, {name: statistics.median(values) for name, values in times.items()})
