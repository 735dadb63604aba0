"""One step of the demo without its check: building the arrays, and staging them each way.

python -m pytest benchmarks/staging/demo/bench_step.py             # on a GPU
python -m staging sim --policy null python -m pytest benchmarks/staging/demo/bench_step.py

The two ways of staging are in one table; the figure behind a median is its ratio to the
best one. Over the simulated device the table's title says so: its times are host times,
and compare the two ways with each other; they are not device times.
"""

from __future__ import annotations

import pytest
import torch

from staging.demo.corpus import cut, shipped_documents
from staging.demo.inputs import InputBuilder
from staging.demo.place import NoDevice, Place, find
from staging.demo.report import place_name
from staging.demo.request_table import Limits
from staging.demo.scheduler import Scheduler
from staging.demo.stagers import STAGERS

ROUNDS = 500
WARM_UP_STEPS = 100  # until as many requests run as may, and nothing is pinned any more


class Steps:
    """Builds one step after another in a stager's arrays."""

    def __init__(self, stager, limits, builder):
        self.stager = stager
        self.scheduler = Scheduler(limits, cut(shipped_documents(), seed=0))
        self.builder = builder

    def build(self):
        """Build the next step and return how much of each array it uses."""
        batch = self.scheduler.schedule()
        used = self.builder.build(self.scheduler.table, batch, self.stager.host())
        self.scheduler.advance(batch)
        return used


def title(what: str, where: Place) -> str:
    simulated = where.kind == "simulated"
    caution = "simulated host times, not device times" if simulated else "host times"
    return f"{what}, on: {place_name(where)} ({caution})"


@pytest.fixture(scope="module")
def where():
    try:
        return find("auto")
    except NoDevice as error:
        pytest.skip(str(error))


def steps_of(make, where):
    limits = Limits()
    builder = InputBuilder(limits)
    return Steps(make(builder.specs, where.device), limits, builder)


@pytest.mark.parametrize("make", STAGERS, ids=lambda make: make.name)
def test_stage_a_step(benchmark, make, where):
    steps = steps_of(make, where)

    def settle():
        if where.device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(WARM_UP_STEPS):
        steps.stager.stage(steps.build())
        settle()

    def setup():
        settle()
        return (steps.build(),), {}

    benchmark.group = title(f"stage a step's {len(steps.builder.specs)} arrays", where)
    benchmark.extra_info["device"] = place_name(where)
    benchmark.pedantic(steps.stager.stage, setup=setup, rounds=ROUNDS, iterations=1)


def test_build_a_step(benchmark):
    """The NumPy part: schedule a step and build its arrays in plain memory."""
    cpu = Place(torch.device("cpu"), "cpu", "CPU")
    steps = steps_of(STAGERS[0], cpu)
    for _ in range(WARM_UP_STEPS):
        steps.build()
    benchmark.group = title("schedule and build a step", cpu)
    benchmark.pedantic(steps.build, rounds=ROUNDS, iterations=1)
