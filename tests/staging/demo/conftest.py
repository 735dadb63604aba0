"""Running Python in a process of its own, over the simulated device where that is wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from staging.sim import cli as sim_cli

ROOT = Path(__file__).resolve().parents[3]


def plain_environment():
    """Return this environment without the simulated device, in case pytest runs over it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("STAGING_SIM")}
    for name, ours in (("LD_PRELOAD", sim_cli.RUNTIME), ("LD_LIBRARY_PATH", sim_cli.DRIVER)):
        kept = [path for path in env.pop(name, "").split(":") if path and path != str(ours)]
        if kept:
            env[name] = ":".join(kept)
    return env


@pytest.fixture(scope="session")
def run_python():
    """Run this Python with the given arguments, over the simulated device or without it."""

    def run(*arguments, policy=None, seed=0):
        env = plain_environment()
        if policy is not None:
            env = sim_cli.environment(policy=policy, seed=seed, base=env)
        return subprocess.run(
            [sys.executable, *arguments],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def simulated():
    """Skip where this build has no simulated device."""
    try:
        sim_cli.environment(base={})
    except FileNotFoundError as error:
        pytest.skip(str(error))
