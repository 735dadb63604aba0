"""Counting 1,024 requests by phase, beside the plain loop that it replaces.

python -m pytest benchmarks/staging/process/bench_iteration.py
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from staging.process.iteration import IterationDetails, compute_iteration_details

REQUESTS = 1024


class Cached:
    """Requests scheduled before, with the number of tokens that each has produced."""

    def __init__(self, produced):
        self.produced = produced

    def is_context_phase(self, req_id):
        """Whether a request has produced nothing yet."""
        count = self.produced.get(req_id)
        return count is not None and count == 0


def plain_loop(output):
    """Count one request after the other, asking the scheduler about each."""
    context_requests = context_tokens = generation_requests = generation_tokens = 0
    new = {request.req_id for request in output.scheduled_new_reqs}
    for req_id, count in output.num_scheduled_tokens.items():
        if output.scheduled_cached_reqs.is_context_phase(req_id) or req_id in new:
            context_requests += 1
            context_tokens += count
        else:
            generation_requests += 1
            generation_tokens += count
    return IterationDetails(
        context_requests, context_tokens, generation_requests, generation_tokens
    )


def step(share_new):
    ids = [f"req-{i:06d}" for i in range(REQUESTS)]
    new = ids[: int(REQUESTS * share_new)]
    chunked = ids[len(new) : len(new) + 16]
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=i) for i in new],
        num_scheduled_tokens={i: 64 if i in new else 1 for i in ids},
        scheduled_cached_reqs=Cached({i: 0 if i in chunked else 7 for i in ids if i not in new}),
        scheduled_encoder_input_stats=None,
    )


@pytest.mark.parametrize("share_new", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("count", [plain_loop, compute_iteration_details], ids=["plain", "staging"])
def test_count_1024_requests(benchmark, count, share_new):
    output = step(share_new)
    assert count(output) == plain_loop(output)
    benchmark(count, output)
