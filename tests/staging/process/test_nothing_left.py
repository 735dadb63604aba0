"""Whatever ends a server, a second later nothing of it is left.

Three rounds of each scenario; the soak (benchmarks/staging/process/soak.py) runs more.
"""

from __future__ import annotations

import random

import pytest
from process_scenarios import SCENARIOS, free_port, run_round, subreaper

ROUNDS = 3
ALLOWANCE = 3.0  # times the promised time: the machine is shared


@pytest.fixture(scope="module")
def port():
    # The same for all: a new supervisor starts on it at once.
    return free_port()


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_nothing_is_left(name, port):
    with subreaper():
        seed = random.randrange(1 << 30)
        for index in range(ROUNDS):
            assert run_round(name, index, seed=seed, port=port, allowance=ALLOWANCE) >= 0
