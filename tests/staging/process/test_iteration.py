"""Every scheduled request is counted once, in the phase that it is in."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import pytest

from staging.process.iteration import IterationDetails, compute_iteration_details


class Cached:
    """Requests scheduled before, and those of them that have produced nothing yet."""

    def __init__(self, in_context=()):
        self.in_context = set(in_context)
        self.asked = []

    def is_context_phase(self, req_id):
        self.asked.append(req_id)
        return req_id in self.in_context


def step(tokens, *, new=(), in_context=(), encoder=None):
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=i) for i in new],
        num_scheduled_tokens=dict(tokens),
        scheduled_cached_reqs=Cached(in_context),
        scheduled_encoder_input_stats=encoder,
    )


def test_a_new_request_is_in_context():
    assert compute_iteration_details(step({"a": 17}, new=["a"])) == IterationDetails(1, 17, 0, 0)


def test_a_later_chunk_of_a_prompt_is_still_in_context():
    details = compute_iteration_details(step({"a": 512, "b": 1}, in_context=["a"]))
    assert details == IterationDetails(1, 512, 1, 1)


def test_everything_else_generates_whatever_its_number_of_tokens():
    # Speculative decoding schedules several tokens of a request that generates.
    assert compute_iteration_details(step({"a": 5, "b": 1})) == IterationDetails(0, 0, 2, 6)


def test_an_empty_step_counts_nothing():
    assert compute_iteration_details(step({})) == IterationDetails(0, 0, 0, 0, 0, 0)


def test_a_new_request_without_tokens_in_this_step_is_not_counted():
    assert compute_iteration_details(step({"b": 1}, new=["a"])) == IterationDetails(0, 0, 1, 1)


def test_a_new_request_with_zero_tokens_is_counted():
    assert compute_iteration_details(step({"a": 0}, new=["a"])) == IterationDetails(1, 0, 0, 0)


def test_the_scheduler_is_not_asked_about_a_new_request():
    output = step({"a": 3, "b": 1}, new=["a"])
    compute_iteration_details(output)
    assert output.scheduled_cached_reqs.asked == ["b"]


def test_encoder_work_is_reported():
    encoder = SimpleNamespace(num_inputs=2, output_tokens=1152)
    details = compute_iteration_details(step({"a": 3}, new=["a"], encoder=encoder))
    assert (details.num_encoder_inputs, details.num_encoder_output_tokens) == (2, 1152)


def test_a_scheduler_that_knows_no_encoder_is_served():
    output = step({"a": 3}, new=["a"])
    del output.scheduled_encoder_input_stats
    assert compute_iteration_details(output) == IterationDetails(1, 3, 0, 0)


def test_the_output_is_only_read():
    output = step({"a": 3, "b": 1}, new=["a"])
    before = dict(output.num_scheduled_tokens)
    compute_iteration_details(output)
    assert output.num_scheduled_tokens == before


def test_details_are_frozen_comparable_and_readable():
    details = IterationDetails(1, 2, 3, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        details.num_ctx_tokens = 0
    assert hash(details) == hash(IterationDetails(1, 2, 3, 4, 0, 0))
    assert repr(details) == (
        "IterationDetails(num_ctx_requests=1, num_ctx_tokens=2, num_generation_requests=3, "
        "num_generation_tokens=4, num_encoder_inputs=0, num_encoder_output_tokens=0)"
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_random_step_agrees_with_a_plain_count(seed):
    rng = random.Random(seed)
    ids = [f"req-{i}" for i in range(rng.randrange(200))]
    tokens = {i: rng.randrange(1, 600) for i in ids}
    new = [i for i in ids if rng.random() < 0.3]
    in_context = [i for i in ids if rng.random() < 0.3]
    context = [i for i in ids if i in new or i in in_context]
    generation = [i for i in ids if i not in context]
    assert compute_iteration_details(
        step(tokens, new=new, in_context=in_context)
    ) == IterationDetails(
        len(context),
        sum(tokens[i] for i in context),
        len(generation),
        sum(tokens[i] for i in generation),
    ), f"seed {seed}"
