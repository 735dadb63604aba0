"""The command line of the simulated device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from staging.sim import cli

ROOT = Path(cli.__file__).resolve().parents[2]
built = pytest.mark.skipif(not cli.RUNTIME.exists(), reason="needs a CUDA build")


def staging_sim(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    env = {key: value for key, value in os.environ.items() if not key.startswith("STAGING_SIM")}
    env.pop("LD_PRELOAD", None)
    return subprocess.run(
        [sys.executable, "-m", "staging", "sim", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
        env={**env, **environment},
    )


SHOW = "from staging import sim; print(sim.active(), *sim.current_policy())"


@built
def test_the_command_runs_over_the_device_that_was_asked_for():
    result = staging_sim("--policy", "random", "--seed", "7", "python", "-c", SHOW)
    assert result.stdout == "True random 7\n", result.stderr


@built
def test_the_default_is_eager():
    assert staging_sim("python", "-c", SHOW).stdout == "True eager 0\n"


@built
def test_options_of_the_command_are_the_commands_own():
    result = staging_sim("--", "python", "-c", "import sys; print(sys.argv[1:])", "--policy", "x")
    assert result.stdout == "['--policy', 'x']\n"


@built
def test_the_status_is_the_commands_own():
    assert staging_sim("python", "-c", "raise SystemExit(3)").returncode == 3


@built
def test_devices_and_capacity():
    code = (
        "import ctypes; rt = ctypes.CDLL('libcudart.so.13'); n = ctypes.c_int()\n"
        "free, total = ctypes.c_size_t(), ctypes.c_size_t()\n"
        "rt.cudaGetDeviceCount(ctypes.byref(n))\n"
        "rt.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)); print(n.value, total.value)\n"
    )
    result = staging_sim("--devices", "3", "--capacity", str(1 << 24), "python", "-c", code)
    assert result.stdout == f"3 {1 << 24}\n", result.stderr


@built
def test_pageable_memory_may_be_late():
    code = (
        "import ctypes; rt = ctypes.CDLL(None)\n"
        "p = ctypes.c_void_p(); rt.cudaMalloc(ctypes.byref(p), 64)\n"
        "host = ctypes.create_string_buffer(b'a' * 64, 64)\n"
        "back = ctypes.create_string_buffer(64)\n"
        "rt.cudaMemcpyAsync(p, host, 64, 1, None); host.raw = b'b' * 64\n"
        "rt.cudaDeviceSynchronize(); rt.cudaMemcpy(back, p, 64, 2); print(back.raw[:1])\n"
    )
    lazy = staging_sim("--policy", "lazy", "python", "-c", code)
    assert lazy.stdout == "b'a'\n", lazy.stderr
    late = staging_sim("--policy", "lazy", "--pageable-async", "python", "-c", code)
    assert late.stdout == "b'b'\n", late.stderr


@built
def test_the_record_is_written_at_exit(tmp_path: Path):
    file = tmp_path / "calls.jsonl"
    code = "import ctypes; ctypes.CDLL(None).cudaDeviceSynchronize()"
    for _ in range(2):  # a new run starts a new file
        result = staging_sim("--record", str(file), "python", "-c", code)
        assert result.returncode == 0, result.stderr
    calls = [json.loads(line) for line in file.read_text().splitlines()]
    assert [call["name"] for call in calls] == ["cudaDeviceSynchronize"]
    assert calls[0]["result"] == 0
    assert calls[0]["stream"] == calls[0]["bytes"] == 0


def test_help_has_an_example():
    result = staging_sim("--help")
    assert result.returncode == 0
    assert "examples:" in result.stdout
    assert "--pageable-async" in result.stdout


def test_no_command_is_an_error():
    result = staging_sim()
    assert result.returncode == 2
    assert "no command" in result.stderr


def test_a_wrong_policy_is_an_error():
    result = staging_sim("--policy", "sometimes", "true")
    assert result.returncode == 2
    assert "sometimes" in result.stderr


def test_a_negative_number_is_an_error():
    result = staging_sim("--devices", "-1", "true")
    assert result.returncode == 2
    assert "0 or more" in result.stderr


@built
def test_a_command_that_does_not_exist_is_an_error():
    result = staging_sim("no-such-command-here")
    assert result.returncode == 127
    assert "no-such-command-here" in result.stderr


@built
def test_a_variable_that_makes_no_sense_is_named():
    env = cli.environment(base={"PATH": "/usr/bin:/bin"})
    env["STAGING_SIM_DEVICES"] = "many"
    code = "import ctypes; ctypes.CDLL(None).cudaDeviceSynchronize()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert result.returncode == 2
    assert "STAGING_SIM_DEVICES=many" in result.stderr


def test_libraries_that_are_not_built_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cli, "RUNTIME", tmp_path / "libstaging_sim_cudart.so")
    assert cli.main(["true"]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path) in error
    assert "CUDA build" in error


@built
def test_what_was_preloaded_before_stays_preloaded():
    env = cli.environment(base={"LD_PRELOAD": "/a.so", "LD_LIBRARY_PATH": "/b"})
    assert env["LD_PRELOAD"] == f"{cli.RUNTIME}:/a.so"
    assert env["LD_LIBRARY_PATH"] == f"{cli.DRIVER}:/b"
    again = cli.environment(base=env)
    assert again["LD_PRELOAD"] == env["LD_PRELOAD"]
    assert again["LD_LIBRARY_PATH"] == env["LD_LIBRARY_PATH"]


def test_outside_of_it_the_module_says_how_to_get_in():
    code = (
        "from staging import sim\n"
        "assert not sim.active()\n"
        "try: sim.counters()\n"
        "except RuntimeError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={}, check=False
    )
    assert "python -m staging sim" in result.stdout, result.stderr
