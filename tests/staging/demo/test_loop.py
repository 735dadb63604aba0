"""The loop runs whole steps, and its check catches a stager that is late."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from staging.demo.corpus import Document, cut
from staging.demo.loop import WARM_UP_STEPS, Loop, run_beside
from staging.demo.place import Place
from staging.demo.request_table import Limits
from staging.demo.stagers import BufferStager, PlainStager

CPU = Place(torch.device("cpu"), "cpu", "CPU")
LIMITS = Limits(requests=6, step_tokens=128)
TEXT = [Document("text", bytes(range(256)) * 8)]


class LateStager(PlainStager):
    """Brings what was staged one step ago, as a copy would that comes too late."""

    name = "late"

    def __init__(self, specs, device):
        super().__init__(specs, device)
        self._staged = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in specs}

    def stage(self, used):
        for name, array in self.host().items():
            self.device[name].copy_(torch.from_numpy(self._staged[name]))
            self._staged[name][...] = array


def loop(make, *, place=CPU, passes=None, **options):
    return Loop(
        make, place=place, limits=LIMITS, source=cut(TEXT, seed=1, passes=passes), **options
    )


@pytest.mark.parametrize("make", [PlainStager, BufferStager])
def test_on_the_cpu_every_step_is_right(make):
    it = loop(make)
    assert it.run(70) == 70
    found = it.findings
    assert (it.steps, found.checked_steps, found.wrong_steps) == (70, 70, 0)
    assert found.checked_bytes == it.staged_bytes > 0
    assert it.tokens > 70
    assert it.measured_steps == len(it.stage_us) == len(it.build_us) == 70
    assert (it.stage_us > 0).all()


def test_a_late_copy_is_a_wrong_step():
    it = loop(LateStager)
    it.run(50)
    assert it.findings.checked_steps == 50
    assert it.findings.wrong_steps == 50
    assert it.findings.first.step == 0
    assert it.findings.first.input == "input_ids"


def test_the_loop_ends_when_the_texts_do():
    it = loop(BufferStager, passes=1)
    done = it.run(100_000)
    assert 0 < done == it.steps == it.findings.checked_steps
    assert it.run(5) == 0
    assert it.tokens == len(TEXT[0].text) + it.scheduler.finished
    assert it.scheduler.allocator.free == LIMITS.cache_blocks - 1


def test_close_gives_all_blocks_back():
    it = loop(BufferStager)
    it.run(9)
    assert it.scheduler.running
    it.close()
    assert it.scheduler.allocator.free == LIMITS.cache_blocks - 1


def test_loops_beside_each_other_do_the_same_steps():
    loops = [loop(PlainStager), loop(BufferStager)]
    seen = []
    run_beside(loops, 100, chunk=32, progress=lambda it: seen.append((it.name, it.steps)))
    assert [it.steps for it in loops] == [100, 100]
    assert loops[0].staged_bytes == loops[1].staged_bytes
    assert loops[0].tokens == loops[1].tokens
    turns = [WARM_UP_STEPS, 48, 80, 100]
    assert seen == [(name, steps) for steps in turns for name in ("plain", "staging")]
    assert {it.measured_steps for it in loops} == {100 - WARM_UP_STEPS}


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_short_runs_are_measured_too(steps):
    it = loop(BufferStager)
    run_beside([it], steps)
    assert it.steps == steps
    assert it.measured_steps == steps - steps // 2


def test_calls_are_those_of_the_staging_part():
    calls = {"cudaMemcpyAsync": 5}

    class CountingStager(PlainStager):
        def host(self):
            calls["cudaEventQuery"] = calls.get("cudaEventQuery", 0) + 1
            return super().host()

        def stage(self, used):
            super().stage(used)
            calls["cudaMemcpyAsync"] += len(used)

    place = Place(torch.device("cpu"), "simulated", "test", counters=lambda: dict(calls))
    it = loop(CountingStager, place=place)
    it.run(3, measure=False)
    assert not it.calls
    it.run(4)
    assert it.calls == {"cudaMemcpyAsync": 4 * len(it.builder.specs)}


def test_a_seed_gives_the_same_bytes():
    def meant():
        it = loop(BufferStager)
        it.run(20)
        return {name: np.array(array) for name, array in it.stager.host().items()}

    first, second = meant(), meant()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], name)


def test_ahead_is_at_least_one():
    with pytest.raises(ValueError, match="ahead must be at least 1, got 0"):
        loop(BufferStager, ahead=0)
