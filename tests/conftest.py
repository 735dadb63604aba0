"""Which tests can run here: see the markers in pyproject.toml.

Nothing here imports torch for tests that do not need it.
"""

from __future__ import annotations

import functools
import os
import random
import signal

import pytest


@functools.cache
def over_simulated_device() -> bool:
    from staging import sim

    return sim.active()


@functools.cache
def cuda_available() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_configure() -> None:
    # Whoever is started in the background by a shell ignores Ctrl-C, and a hangup if by nohup; and
    # so would what the tests signal.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ops",
        type=int,
        default=2000,
        help="operations of each run of tests/staging/test_race.py (default: 2000)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    required = os.environ.get("STAGING_REQUIRE_GPU") == "1"
    for item in items:
        if " at 0x" in item.nodeid:
            # pytest-xdist asks that each of its processes finds the same tests.
            raise pytest.UsageError(f"{item.nodeid}: its name is another one in each process")
        if item.get_closest_marker("gpu") and (over_simulated_device() or not cuda_available()):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: scripts/gpu_check"))
        elif item.get_closest_marker("sim") and not over_simulated_device():
            item.add_marker(
                pytest.mark.skip(reason="needs the simulated device: python -m staging sim …")
            )
        elif item.get_closest_marker("cuda") and not cuda_available() and not required:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, real or simulated"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed that is shown when the test fails; STAGING_SEED=N repeats it."""
    given = os.environ.get("STAGING_SEED")
    value = int(given) if given else random.SystemRandom().randrange(2**31)
    request.node.user_properties.append(("seed", value))
    print(f"STAGING_SEED={value}")
    return value


@pytest.fixture(autouse=True)
def _schedule(request: pytest.FixtureRequest):
    """Each test begins and ends with nothing enqueued, whatever schedule it chose."""
    if not request.node.get_closest_marker("sim"):
        yield
        return
    from staging import sim

    policy = sim.current_policy()
    yield
    sim.run_all()
    sim.set_policy(policy[0], seed=policy[1])
