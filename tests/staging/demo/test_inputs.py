"""The step's arrays say what a slow loop over the requests says."""

from __future__ import annotations

import numpy as np
import pytest

from staging.demo.corpus import cut, shipped_documents
from staging.demo.inputs import InputBuilder, input_specs
from staging.demo.request_table import Limits
from staging.demo.scheduler import Scheduler

SMALL = Limits(requests=9, step_tokens=300, block_tokens=7)


def slow_inputs(table, batch, block_tokens):
    """Build a step's inputs with one token at a time."""
    names = [spec.name for spec in input_specs(table.limits)]
    out: dict[str, list] = {name: [] for name in names}
    out["query_start"].append(0)
    for index, (row, count) in enumerate(
        zip(batch.rows.tolist(), batch.counts.tolist(), strict=True)
    ):
        request = table.request[row]
        computed = int(table.computed[row])
        for position in range(computed, computed + count):
            block = int(table.blocks[row][position // block_tokens])
            out["input_ids"].append(int(request.tokens[position]))
            out["positions"].append(position)
            out["slot_mapping"].append(block * block_tokens + position % block_tokens)
            out["token_request"].append(index)
        out["query_start"].append(len(out["input_ids"]))
        out["seq_lens"].append(computed + count)
        out["computed_tokens"].append(computed)
        out["logits_index"].append(len(out["input_ids"]) - 1)
        out["block_table"].append(table.blocks[row].tolist())
        for name, value in request.sampling.items():
            out[name].append(value)
    return out


def garbage(specs):
    random = np.random.default_rng(1)
    return {s.name: random.integers(1, 99, s.shape).astype(s.dtype) for s in specs}


@pytest.mark.parametrize("limits", [SMALL, Limits(requests=1, step_tokens=1), Limits()], ids=str)
def test_every_array_equals_the_slow_reference_in_every_step(limits):
    scheduler = Scheduler(limits, cut(shipped_documents(), seed=11))
    builder = InputBuilder(limits)
    host = garbage(builder.specs)
    for step in range(40):
        batch = scheduler.schedule()
        used = builder.build(scheduler.table, batch, host)
        wanted = slow_inputs(scheduler.table, batch, limits.block_tokens)
        assert set(used) == set(wanted) == {spec.name for spec in builder.specs}
        for spec in builder.specs:
            assert used[spec.name] == len(wanted[spec.name])
            expected = np.array(wanted[spec.name], dtype=spec.dtype)
            np.testing.assert_array_equal(
                host[spec.name][: used[spec.name]], expected, f"{spec.name}, step {step}"
            )
        scheduler.advance(batch)


def test_what_a_step_does_not_use_is_left_alone():
    scheduler = Scheduler(SMALL, cut(shipped_documents(), seed=2))
    builder = InputBuilder(SMALL)
    host = garbage(builder.specs)
    before = {name: array.copy() for name, array in host.items()}
    used = builder.build(scheduler.table, scheduler.schedule(), host)
    for name, array in host.items():
        np.testing.assert_array_equal(array[used[name] :], before[name][used[name] :], name)


def test_running_tokens_of_a_step_are_written_to_places_of_their_own():
    scheduler = Scheduler(Limits(), cut(shipped_documents(), seed=4))
    builder = InputBuilder(Limits())
    host = garbage(builder.specs)
    for _ in range(60):
        batch = scheduler.schedule()
        used = builder.build(scheduler.table, batch, host)
        slots = host["slot_mapping"][: used["slot_mapping"]]
        assert len(np.unique(slots)) == len(slots)
        assert slots.min() >= Limits().block_tokens, "the null block is never written"
        scheduler.advance(batch)


def test_specs_state_their_size():
    specs = {spec.name: spec for spec in input_specs(SMALL)}
    assert len(specs) >= 15
    table = specs["block_table"]
    assert table.row_nbytes == 4 * SMALL.request_blocks
    assert table.nbytes == 9 * table.row_nbytes
    for spec in specs.values():
        assert np.empty(spec.shape, spec.dtype).nbytes == spec.nbytes
