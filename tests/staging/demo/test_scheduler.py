"""Each request runs each of its tokens once, in order, in memory of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staging.demo.blocks import NULL_BLOCK
from staging.demo.corpus import SAMPLING_DTYPES, Document, Request, cut
from staging.demo.request_table import Limits
from staging.demo.scheduler import Scheduler

SAMPLING = dict.fromkeys(SAMPLING_DTYPES, 0)


def request(number, prompt, completion):
    tokens = np.arange(prompt + completion, dtype=np.int32)
    return Request(number, tokens, prompt, SAMPLING)


@st.composite
def workloads(draw):
    requests = draw(st.integers(1, 6))
    limits = Limits(
        requests=requests,
        step_tokens=requests + draw(st.integers(0, 20)),
        request_tokens=40,
        block_tokens=draw(st.integers(1, 7)),
    )
    most = requests * limits.request_blocks
    limits = Limits(
        requests=limits.requests,
        step_tokens=limits.step_tokens,
        request_tokens=40,
        block_tokens=limits.block_tokens,
        cache_blocks=1 + draw(st.integers(limits.request_blocks, most)),
    )
    sizes = draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 10)), max_size=15))
    return limits, [request(number, *size) for number, size in enumerate(sizes)]


def check_step(scheduler, limits, batch):
    """Assert what must hold for a step before it runs."""
    table = scheduler.table
    assert len(batch.rows) == len(batch.counts) <= limits.requests
    assert len(set(batch.rows.tolist())) == len(batch.rows)
    assert (batch.counts > 0).all()
    assert batch.tokens == batch.counts.sum() <= limits.step_tokens

    running = [row for row, request in enumerate(table.request) if request is not None]
    decoding = {row for row in running if table.computed[row] >= table.prompt[row]}
    first = batch.rows[: len(decoding)].tolist()
    assert set(first) == decoding, "every request that decodes is in the step, before prompts"
    assert (batch.counts[: len(decoding)] == 1).all()
    for row, count in zip(batch.rows[len(decoding) :], batch.counts[len(decoding) :], strict=True):
        assert table.computed[row] + count <= table.prompt[row], "a chunk ends with the prompt"

    owned = []
    for row in running:
        held = int(table.blocks_held[row])
        owned += table.blocks[row, :held].tolist()
        assert (table.blocks[row, held:] == NULL_BLOCK).all()
    for row, count in zip(batch.rows, batch.counts, strict=True):
        assert table.blocks_held[row] == limits.blocks_of(int(table.computed[row] + count))
    assert len(set(owned)) == len(owned), "no block belongs to two requests"
    assert NULL_BLOCK not in owned
    assert scheduler.allocator.free == limits.cache_blocks - 1 - len(owned)


def run(scheduler, limits, steps=10_000):
    """Run to the end and return the token positions that each request ran, in order."""
    ran: dict[int, list[int]] = {}
    for _ in range(steps):
        batch = scheduler.schedule()
        if batch is None:
            return ran
        check_step(scheduler, limits, batch)
        for row, count in zip(batch.rows, batch.counts, strict=True):
            start = int(scheduler.table.computed[row])
            number = scheduler.table.request[row].number
            ran.setdefault(number, []).extend(range(start, start + int(count)))
        scheduler.advance(batch)
    pytest.fail("the scheduler does not come to an end")


@settings(max_examples=60, deadline=None)
@given(workloads())
def test_each_token_of_each_request_runs_once_and_in_order(workload):
    limits, requests = workload
    scheduler = Scheduler(limits, iter(requests))
    ran = run(scheduler, limits)
    assert ran == {r.number: list(range(len(r.tokens))) for r in requests}
    assert list(ran) == sorted(ran), "requests start in the order in which they came"
    assert scheduler.finished == len(requests)


@settings(max_examples=40, deadline=None)
@given(workloads(), st.integers(0, 20))
def test_all_blocks_and_rows_are_free_at_the_end_however_it_ends(workload, steps):
    limits, requests = workload
    scheduler = Scheduler(limits, iter(requests))
    for _ in range(steps):
        batch = scheduler.schedule()
        if batch is None:
            break
        scheduler.advance(batch)
    scheduler.stop()
    assert scheduler.running == 0
    assert scheduler.table.free_rows == limits.requests
    assert scheduler.allocator.free == limits.cache_blocks - 1
    assert scheduler.allocator.reserved == 0


def test_a_long_prompt_runs_in_chunks_while_others_decode():
    limits = Limits(requests=3, step_tokens=8, request_tokens=64)
    scheduler = Scheduler(limits, iter([request(0, 2, 5), request(1, 20, 2), request(2, 1, 1)]))
    shares = []
    for _ in range(4):
        batch = scheduler.schedule()
        numbers = [scheduler.table.request[row].number for row in batch.rows]
        shares.append(dict(zip(numbers, batch.counts.tolist(), strict=True)))
        scheduler.advance(batch)
    assert shares == [{0: 2, 1: 6}, {0: 1, 1: 7}, {0: 1, 1: 7}, {0: 1, 1: 1, 2: 1}]


def test_a_request_waits_until_blocks_for_all_of_it_are_there():
    limits = Limits(
        requests=4, step_tokens=64, request_tokens=32, block_tokens=4, cache_blocks=1 + 10
    )
    scheduler = Scheduler(limits, iter([request(0, 24, 4), request(1, 20, 2), request(2, 1, 1)]))
    started = []
    while (batch := scheduler.schedule()) is not None:
        started.append([scheduler.table.request[row].number for row in batch.rows])
        scheduler.advance(batch)
    # 7 blocks of 10 are promised to request 0. Request 1 needs 6; request 2 does not overtake.
    assert started[:6] == [[0]] * 5 + [[1, 2]]


def test_the_source_is_asked_only_when_there_is_room():
    asked = []

    def source():
        for number in range(100):
            asked.append(number)
            yield request(number, 4, 4)

    scheduler = Scheduler(Limits(requests=2, step_tokens=16, request_tokens=8), source())
    scheduler.schedule()
    assert asked == [0, 1]


def test_a_request_that_cannot_ever_run_is_an_error_and_not_the_end():
    scheduler = Scheduler(
        Limits(requests=2, step_tokens=16, request_tokens=8), iter([request(0, 8, 1)])
    )
    with pytest.raises(ValueError, match="more than the limit of 8"):
        scheduler.schedule()
    assert scheduler.allocator.reserved == 0


def test_real_text_fills_all_places():
    limits = Limits()
    scheduler = Scheduler(limits, cut([Document("text", b"words " * 1000)], seed=0))
    most = 0
    for _ in range(150):
        batch = scheduler.schedule()
        most = max(most, len(batch.rows))
        scheduler.advance(batch)
    assert most == limits.requests
    assert scheduler.finished > 0
