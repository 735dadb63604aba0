"""scripts/gpu_check reports what ran, wherever it was cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"name": "good", "command": [sys.executable, "-c", "print('3 passed')"], "limit_s": 30}
BAD = {"name": "bad", "command": [sys.executable, "-c", "raise SystemExit('no')"], "limit_s": 30}
HANGS = {"name": "hangs", "command": ["sh", "-c", "trap '' TERM; echo began; sleep 100"],
         "limit_s": 0.5}  # fmt: skip
SLOW = {"name": "slow", "command": ["sleep", "100"], "limit_s": 200}
LAST = {**GOOD, "name": "last"}


class Check:
    def __init__(self, folder: Path, *steps: dict[str, object]) -> None:
        self.out = folder / "results"
        file = folder / "steps.json"
        file.write_text(json.dumps(steps))
        self.command = [sys.executable, str(ROOT / "scripts" / "gpu_check"),
                        "--steps", str(file), "--out", str(self.out)]  # fmt: skip

    def run(self, *arguments: str) -> int:
        return subprocess.run(
            [*self.command, *arguments], check=False, capture_output=True, timeout=60
        ).returncode

    def states(self) -> dict[str, str]:
        steps = json.loads((self.out / "gpu_check.json").read_text())["steps"]
        return {step["name"]: step["state"] for step in steps}

    def page(self) -> str:
        return (self.out / "gpu_check.md").read_text()


def test_what_passes_is_0_with_its_counts_on_the_page(tmp_path):
    check = Check(tmp_path, GOOD, LAST)
    assert check.run() == 0
    assert check.states() == {"good": "passed", "last": "passed"}
    assert "| good | passed | 0 | 3 passed |" in check.page()


def test_a_step_that_fails_or_hangs_does_not_keep_the_others_from_running(tmp_path):
    check = Check(tmp_path, BAD, HANGS, LAST)
    assert check.run() == 1
    assert check.states() == {"bad": "failed", "hangs": "hung", "last": "passed"}
    assert "## hangs: hung\n\n```\nbegan\n" in check.page()


def test_when_the_time_runs_out_it_says_so_and_a_second_call_goes_on(tmp_path):
    check = Check(tmp_path, GOOD, SLOW, LAST)
    assert check.run("--limit", "5") == 3
    assert check.states() == {"good": "passed", "slow": "cut off", "last": "not run"}
    written = (check.out / "logs" / "good.log").stat().st_mtime_ns
    assert check.run("--limit", "5") == 3
    assert (check.out / "logs" / "good.log").stat().st_mtime_ns == written  # not run again
    assert check.run("--limit", "5", "--fresh") == 3
    assert (check.out / "logs" / "good.log").stat().st_mtime_ns > written


def test_ended_in_the_middle_the_results_so_far_are_there(tmp_path):
    check = Check(tmp_path, GOOD, SLOW, LAST)
    process = subprocess.Popen(
        check.command, stdout=subprocess.DEVNULL, start_new_session=True, env=dict(os.environ)
    )
    sleeping = None
    for _ in range(600):
        time.sleep(0.05)
        if (check.out / "gpu_check.json").exists() and check.states()["slow"] == "running":
            sleeping = subprocess.run(
                ["ps", "--ppid", str(process.pid), "-o", "pid="],
                capture_output=True, text=True, check=False,
            ).stdout.split()  # fmt: skip
            if sleeping:
                break
    process.kill()
    process.wait()
    for pid in sleeping or []:
        os.kill(int(pid), signal.SIGKILL)
    assert check.states() == {"good": "passed", "slow": "running", "last": "not run"}
    assert "| slow | running |" in check.page()


def test_help_has_an_example():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gpu_check"), "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "scripts/gpu_check --rehearse" in done.stdout


@pytest.mark.parametrize("rehearse", [False, True])
def test_the_steps_name_files_that_are_there(rehearse, tmp_path, monkeypatch):
    path = str(ROOT / "scripts" / "gpu_check")
    spec = spec_from_loader("gpu_check", SourceFileLoader("gpu_check", path))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)  # dataclasses look their module up
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(module)
    for step in module.real_steps(sys.executable, tmp_path, rehearse):
        for argument in step.command:
            path = argument.removeprefix("--ignore=")
            if path.startswith(("tests", "benchmarks")):
                assert (ROOT / path).exists(), path
