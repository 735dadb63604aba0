"""The demo from its options to its exit status, on the CPU and over the simulated device."""

from __future__ import annotations

import json

import pytest
import torch

from staging import sim
from staging.demo import cli, place
from staging.demo.stagers import BufferStager, PlainStager

SMALL = ("--steps", "40", "--requests", "24", "--tokens", "600")


def run(capsys, *arguments):
    status = cli.main(["--device", "cpu", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# -- on the CPU, in this process ----------------------------------------------------------


def test_on_the_cpu_both_loops_are_right(capsys):
    status, out, _ = run(capsys, *SMALL, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["ok"] is True
    assert report["device"] == {"kind": "cpu", "name": "CPU", "policy": None}
    for loop in report["loops"].values():
        assert loop["steps"] == loop["checked_steps"] == 40
        assert loop["wrong_steps"] == loop["wrong_bytes"] == 0
        assert loop["bytes_staged"] > 40_000


def test_the_table_and_the_progress_are_for_people(capsys):
    status, out, err = run(capsys, *SMALL)
    assert status == 0
    assert "on: CPU" in out
    assert "wrong steps" in out
    assert "40/40 steps" in err
    with pytest.raises(json.JSONDecodeError):
        json.loads(out)


def test_files_take_the_place_of_the_shipped_texts(capsys, tmp_path):
    texts = [tmp_path / "one.txt", tmp_path / "two.bin"]
    texts[0].write_text("Il ne faut jamais remettre au lendemain. " * 9)
    texts[1].write_bytes(bytes(range(256)))
    status, out, _ = run(capsys, *SMALL, "--json", *map(str, texts))
    assert status == 0
    assert json.loads(out)["workload"]["documents"] == [str(path) for path in texts]


def test_a_wrong_step_of_the_staging_loop_is_a_failure(capsys, monkeypatch):
    class StuckStager(BufferStager):
        def stage(self, used):
            super().stage(used | {"seq_lens": 0})

    class WrongPlainStager(PlainStager):
        def stage(self, used):
            super().stage(used | {"seq_lens": 0})

    for stagers, wanted in (((WrongPlainStager, BufferStager), 0), ((PlainStager, StuckStager), 1)):
        monkeypatch.setattr("staging.demo.stagers.STAGERS", stagers)
        status, out, _ = run(capsys, *SMALL, "--json")
        assert status == wanted
        assert json.loads(out)["ok"] is (wanted == 0)


def test_a_seed_is_a_workload(capsys):
    def bytes_staged(seed):
        _, out, _ = run(capsys, *SMALL, "--json", "--seed", str(seed))
        return json.loads(out)["loops"]["staging"]["bytes_staged"]

    assert bytes_staged(4) == bytes_staged(4) != bytes_staged(5)


# -- options that do not fit --------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--requests", "9", "--tokens", "8"], "step_tokens must be at least requests (9)"),
        (["no/such/file"], "no/such/file"),
        (["--steps", "0"], "must be at least 1, got 0"),
        (["--seed", "-1"], "must not be negative, got -1"),
        (["--model-ms", "nan"], "must be 0 to 10,000 ms, got nan"),
        (["--ahead", "0"], "must be at least 1, got 0"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_named_with_its_value(capsys, arguments, says):
    try:
        status = cli.main(["--device", "cpu", *arguments])
    except SystemExit as left:  # argparse's own errors
        status = left.code
    captured = capsys.readouterr()
    assert status == 2
    assert says in captured.err
    assert not captured.out


def test_an_empty_file_is_refused(capsys, tmp_path):
    path = tmp_path / "empty"
    path.touch()
    status, _, err = run(capsys, str(path))
    assert status == 2
    assert f"{path} is empty" in err


def test_a_device_that_is_not_there_is_an_error(capsys, monkeypatch):
    def refuse(requested):
        raise place.NoDevice(f"no {requested}")

    monkeypatch.setattr(place, "find", refuse)
    assert cli.main(["--device", "cuda"]) == 2
    assert "no cuda" in capsys.readouterr().err


def test_a_schedule_that_moves_nothing_is_an_error(capsys, monkeypatch):
    nothing = place.Place(torch.device("cpu"), "simulated", "Simulated device", "null")
    monkeypatch.setattr(place, "find", lambda requested: nothing)
    assert cli.main(["--device", "cuda"]) == 2
    assert "policy is null" in capsys.readouterr().err


def test_without_rich_the_table_is_an_error_and_json_is_not(capsys, monkeypatch):
    monkeypatch.setattr(cli, "_rich_is_there", lambda: False)
    status, _, err = run(capsys, *SMALL)
    assert status == 2
    assert "tensor-staging[demo]" in err
    assert run(capsys, *SMALL, "--json")[0] == 0


def test_an_interrupt_ends_it_quietly(capsys, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("staging.demo.loop.run_beside", interrupt)
    status, out, err = run(capsys, *SMALL, "--json")
    assert (status, out) == (130, "")
    assert "interrupted" in err


def test_help_has_an_example_and_says_what_the_exit_status_is(capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "python -m staging demo --steps 500" in out
    assert "exit status: 0" in out


# -- over the simulated device ------------------------------------------------------------

# One process for all of them: it is loading torch that takes long.
VARIANTS = {
    "lazy": ("lazy", ["--steps", "70"]),
    "lazy, waiting": ("lazy", [*SMALL, "--ahead", "1"]),
    "eager": ("eager", SMALL),
    "random": ("random", SMALL),
    "threads": ("threads", SMALL),
}
RUN_VARIANTS = """
import contextlib, io, json, sys
from staging import sim
from staging.demo import cli

results = {}
for name, (policy, arguments) in json.loads(sys.argv[1]).items():
    out = io.StringIO()
    # progress(0): only a wait runs work, so that nothing here depends on time.
    with sim.policy(policy, seed=7), sim.progress(0), contextlib.redirect_stdout(out):
        status = cli.main(["--json", "--device", "cuda", *arguments])
    results[name] = {"status": status, **json.loads(out.getvalue())}
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def reports(simulated, run_python):
    result = run_python("-c", RUN_VARIANTS, json.dumps(VARIANTS), policy="lazy")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.sim
def test_where_copies_run_late_the_plain_loop_is_wrong_and_the_staging_loop_is_right(reports):
    report = reports["lazy"]
    assert report["status"] == 0
    assert report["device"]["kind"] == "simulated"
    plain, staged = report["loops"]["plain"], report["loops"]["staging"]
    assert plain["checked_steps"] == staged["checked_steps"] == 70
    # All but the last of each turn, which the check waits for before the array is overwritten.
    assert plain["wrong_steps"] == 70 - 3
    assert plain["first_wrong"]["input"] == "input_ids"
    assert (staged["wrong_steps"], staged["wrong_bytes"], staged["first_wrong"]) == (0, 0, None)


@pytest.mark.sim
def test_staging_an_array_is_one_copy_and_one_event_and_so_is_a_group(reports):
    report = reports["lazy"]
    arrays = len(report["workload"]["inputs"])
    plain, staged, group = (
        report["loops"][name]["runtime_calls_per_step"] for name in ("plain", "staging", "group")
    )
    assert plain["cudaMemcpyAsync"] == staged["cudaMemcpyAsync"] == arrays
    assert staged["cudaEventRecord"] == arrays
    assert group.get("cudaMemcpyAsync", 0) + group.get("cudaLaunchKernel", 0) == 1
    assert group["cudaEventRecord"] == 1
    assert not [name for name in (*staged, *group) if "Synchronize" in name]


@pytest.mark.sim
@pytest.mark.parametrize("name", VARIANTS)
def test_the_staging_loops_are_right_under_every_schedule(reports, name):
    report = reports[name]
    assert report["status"] == 0
    assert report["device"]["policy"] == VARIANTS[name][0]
    for loop in ("staging", "group"):
        staged = report["loops"][loop]
        assert staged["checked_steps"] == report["workload"]["steps"] > 0
        assert staged["wrong_steps"] == 0


@pytest.mark.sim
@pytest.mark.parametrize("name", ["eager", "lazy, waiting"])
def test_the_plain_loop_is_right_where_each_copy_runs_before_the_next_step(reports, name):
    assert reports[name]["loops"]["plain"]["wrong_steps"] == 0


@pytest.mark.sim
def test_without_a_gpu_it_runs_itself_over_the_simulated_device(simulated, run_python):
    if not sim.active() and place.driver_has_device():
        pytest.skip("there is a GPU: the demo runs on that")
    result = run_python("-m", "staging", "demo", *SMALL)
    assert result.returncode == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert "on: Simulated device, schedule: lazy" in text
    assert "Simulated host times are not device times" in text
    assert "no GPU here: over the simulated device" in result.stderr
