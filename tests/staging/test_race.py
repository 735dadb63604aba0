"""Whatever is done with buffers, under every schedule: no wrong byte, nothing leaked.

Drawn by hypothesis, so that a failure shrinks to few operations. CI does a share;
``pytest --ops 100000 tests/staging/test_race.py`` (``make race``) does them all.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, Phase, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test  # noqa: E402
from race_driver import Driver  # noqa: E402

import staging  # noqa: E402
from staging import CpuGpuBuffer, StagedRows, StagingGroup, apply_rows, sim  # noqa: E402
from staging.extension import _C  # noqa: E402

SCHEDULES = ["lazy", "random"]
POLICIES = ("snapshot", "snapshot", "wait", "unchecked")
STEPS = 100  # of one example
FOUND = "host array|device|fetch|replay|table"  # what the driver says of wrong bytes

pytestmark = [pytest.mark.sim, pytest.mark.cuda]


def make_driver() -> Driver:
    return Driver(
        CpuGpuBuffer,
        POLICIES,
        make_group=StagingGroup,
        make_rows=StagedRows,
        apply_rows=apply_rows,
    )


class PlainBuffer:
    """What a runner does today: a pinned tensor, a device tensor, a non-blocking copy."""

    def __init__(self, *size: int, dtype: torch.dtype, device: str) -> None:
        self.cpu = torch.zeros(*size, dtype=dtype, pin_memory=True)
        self.gpu = torch.zeros(*size, dtype=dtype, device=device)
        self.np = self.cpu.numpy()

    def copy_to_gpu(self, n: int) -> torch.Tensor:
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)

    def copy_to_cpu(self, n: int) -> torch.Tensor:
        return self.cpu[:n].copy_(self.gpu[:n], non_blocking=True)


class PlainGroup(StagingGroup):
    """The same of many; a graph reads the host arrays at each replay."""

    def __init__(self, device: str, members, *, pin_memory: bool) -> None:
        super().__init__(device, members)

    def refill(self, prefixes) -> None:
        pass

    def copy_to_gpu(self, prefixes, *, stream=None) -> None:
        for key, n in prefixes.items():
            member = self[key] if isinstance(key, str) else key
            member.gpu[:n].copy_(member.cpu[:n], non_blocking=True)


class PlainRows:
    """A table whose host side is kept whole, and copied whole."""

    def __init__(self, rows: int, cols: int, dtype: torch.dtype, device: str) -> None:
        self.cpu = torch.zeros(rows, cols, dtype=dtype, pin_memory=True)
        self.gpu = torch.zeros(rows, cols, dtype=dtype, device=device)

    def stage(self, row: int, start: int, values) -> None:
        self.cpu[row, start : start + len(values)] = torch.as_tensor(values)

    @staticmethod
    def apply_all(tables: list[PlainRows]) -> None:
        for table in tables:
            table.gpu.copy_(table.cpu, non_blocking=True)


PLAIN = {
    "buffers": lambda: Driver(PlainBuffer, ()),
    "groups": lambda: Driver(CpuGpuBuffer, POLICIES, make_group=PlainGroup),
    "rows": lambda: Driver(
        CpuGpuBuffer, POLICIES, make_rows=PlainRows, apply_rows=PlainRows.apply_all
    ),
}


def settle(in_use: int = 0) -> int:
    """Let everything end that can; the pinned bytes that are still in use.

    The driver tells that a graph is gone when it gets round to it, so this waits a while for
    there to be no more than ``in_use``.
    """
    torch.cuda.synchronize()
    gc.collect()
    sim.run_all()
    deadline = time.monotonic() + (20 if in_use else 0.2)
    while True:
        _C.trim(0)
        left = staging.pinned_stats().in_use
        if left <= in_use or time.monotonic() > deadline:
            return left
        time.sleep(0.001)


def check_nothing_is_left(in_use: int) -> None:
    assert settle(max(in_use, 1)) <= in_use  # fewer, where something older ended meanwhile
    assert _C.reap(0) == 0
    stats = staging.upload_stats()
    assert (stats.in_flight_slots, stats.in_flight_nbytes) == (0, 0)
    assert (stats.events, stats.idle_events) == (0, 0)
    pinned = staging.pinned_stats()
    assert (pinned.in_flight, pinned.lost) == (0, 0)
    assert sim.reports() == []


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_byte_is_wrong_and_nothing_is_left(schedule, seed, request):
    operations = request.config.getoption("--ops")
    in_use = settle()
    sim.clear_reports()

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            sim.set_policy(schedule, seed=seed)
            self.driver = make_driver()

        @rule(kind=st.sampled_from(Driver.KINDS), seed=st.integers(0, 2**32 - 1))
        def step(self, kind: str, seed: int) -> None:
            self.driver.step(kind, seed)

        def teardown(self) -> None:
            self.driver.finish()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max(1, operations // STEPS),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    check_nothing_is_left(in_use)


def run(make: Callable[[], Driver], schedule: str, seed: int, operations: int) -> None:
    """The same driver without hypothesis: quicker, and nothing shrinks.

    In the end every copy is overtaken once.
    """
    rng = np.random.default_rng(seed)
    sim.set_policy(schedule, seed=seed)
    driver = make()
    for _ in range(operations):
        driver.step(
            Driver.KINDS[int(rng.integers(len(Driver.KINDS)))], int(rng.integers(2**32 - 1))
        )
    driver.overtake_all()
    driver.finish()


# Certain for every seed, as it does not depend on what the schedule draws. `overtake_all` holds the
# driver's streams, enqueues a copy, and writes the host array: no schedule runs the copy before
# the write (`test_a_held_stream_is_stalled`). Every element is then another one than before, so
# a copy that reads the host array itself brings bytes that the model does not have, and
# `finish` compares them all. The operations before it may find a race as well; they need not.
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("plain", PLAIN)
def test_the_same_driver_finds_the_race_of_the_plain_pattern(plain, schedule, seed):
    with pytest.raises(AssertionError, match=FOUND):
        run(PLAIN[plain], schedule, seed, 100)


@pytest.mark.parametrize("schedule", [*SCHEDULES, "threads"])
def test_an_overtaken_copy_takes_the_bytes_from_before(schedule, seed):
    run(make_driver, schedule, seed, 0)


@pytest.mark.parametrize("schedule", [*SCHEDULES, "threads"])
def test_long_runs_of_one_set_of_buffers(schedule, seed, request):
    in_use = settle()
    sim.clear_reports()
    run(make_driver, schedule, seed, request.config.getoption("--ops"))
    check_nothing_is_left(in_use)
