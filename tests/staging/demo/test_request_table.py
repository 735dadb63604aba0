"""A row is one request's while it runs, and clean when it is given to the next."""

from __future__ import annotations

import numpy as np
import pytest

from staging.demo.blocks import NULL_BLOCK
from staging.demo.corpus import SAMPLING_DTYPES, Request
from staging.demo.request_table import Limits, RequestTable


def request(number, tokens, prompt=1):
    sampling = {name: number + i for i, name in enumerate(SAMPLING_DTYPES)}
    return Request(number, np.arange(tokens, dtype=np.int32), prompt, sampling)


def test_limits_are_consistent_or_refused():
    limits = Limits(requests=4, step_tokens=8, request_tokens=33, block_tokens=16)
    assert limits.request_blocks == 3
    assert limits.cache_blocks == 1 + 4 * 3 * 3 // 4
    assert [limits.blocks_of(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
    # One request always fits, or nothing could ever run.
    assert Limits(requests=1, step_tokens=1).cache_blocks == 1 + Limits().request_blocks
    for wrong, says in (
        ({"requests": 0}, "requests must be at least 1, got 0"),
        ({"requests": 9}, "step_tokens must be at least requests"),
        ({"cache_blocks": 3}, "one request of 3 blocks, got 3"),
        ({"request_tokens": 1}, "request_tokens must be at least 2"),
    ):
        with pytest.raises(ValueError, match=says):
            Limits(**{"requests": 4, "step_tokens": 8, "request_tokens": 33, **wrong})


def test_a_row_holds_what_its_request_says():
    table = RequestTable(Limits(requests=2, step_tokens=4, request_tokens=8))
    row = table.add(request(7, 5, prompt=3))
    assert table.tokens[row, :5].tolist() == [0, 1, 2, 3, 4]
    assert (table.length[row], table.prompt[row], table.computed[row]) == (5, 3, 0)
    for i, (name, dtype) in enumerate(SAMPLING_DTYPES.items()):
        assert table.sampling[name].dtype == dtype
        assert table.sampling[name][row] == 7 + i
    assert table.free_rows == 1


def test_rows_are_never_shared_and_come_back_clean():
    table = RequestTable(Limits(requests=3, step_tokens=4, request_tokens=64))
    rows = [table.add(request(n, 40)) for n in range(3)]
    assert sorted(rows) == [0, 1, 2]
    with pytest.raises(ValueError, match="all 3 rows are taken"):
        table.add(request(3, 1))
    table.blocks[rows[1], :2] = 5, 9
    table.blocks_held[rows[1]] = 2
    table.computed[rows[1]] = 32
    assert table.remove(rows[1]).tolist() == [5, 9]
    with pytest.raises(ValueError, match="free already"):
        table.remove(rows[1])
    again = table.add(request(4, 2))
    assert again == rows[1]
    assert (table.blocks[again] == NULL_BLOCK).all()
    assert (table.blocks_held[again], table.computed[again], table.length[again]) == (0, 0, 2)


def test_a_request_that_is_too_long_is_refused():
    table = RequestTable(Limits(requests=1, step_tokens=4, request_tokens=8))
    with pytest.raises(ValueError, match="request 1 has 9 tokens, more than the limit of 8"):
        table.add(request(1, 9))
    assert table.free_rows == 1
