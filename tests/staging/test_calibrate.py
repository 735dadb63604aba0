"""Calibration: the fit finds the line, and the command says what it did."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from staging import calibrate, cost_table  # noqa: E402
from staging.calibrate import COUNTS, SIZES, Point, fit  # noqa: E402


def points(fixed_us, item_us, gb_per_s):
    return [
        Point(count, nbytes, fixed_us + count * item_us + count * nbytes / (gb_per_s * 1e3))
        for count in COUNTS
        for nbytes in SIZES
    ]


def test_a_line_is_found_again():
    call_us, cost = fit(points(6, 0.5, 20), per_item=False)
    assert call_us == pytest.approx(6)
    assert cost["fixed_us"] == pytest.approx(6)
    assert cost["item_us"] == pytest.approx(0.5)
    assert cost["gb_per_s"] == pytest.approx(20)


def test_of_plain_copies_each_item_is_an_operation():
    call_us, cost = fit(points(4, 2.5, 25), per_item=True)
    assert call_us == pytest.approx(4)
    assert cost["fixed_us"] == pytest.approx(2.5)
    assert cost["item_us"] == 0


def test_a_term_that_would_be_negative_is_left_out():
    noisy = [Point(p.count, p.nbytes, max(p.total_us - 3, 0.5)) for p in points(1, 0.5, 20)]
    _, cost = fit(noisy, per_item=False)
    assert cost["fixed_us"] >= 0
    assert cost["item_us"] >= 0
    assert cost["gb_per_s"] > 0


def test_the_wait_at_the_end_of_each_measurement_is_no_cost(monkeypatch):
    measured = {"copy": points(5, 2, 25), "batch": points(9, 0.5, 6), "kernel": None}
    monkeypatch.setattr(
        calibrate, "measure", lambda device, direction, method, **_: measured[method]
    )
    steps = []
    table = calibrate.calibrate(0, progress=steps.append)
    assert len(steps) == 9
    assert (steps[0], steps[8]) == ("1/9 host_to_device copy", "9/9 device_to_device kernel")
    for direction in cost_table.DIRECTIONS:
        assert table[direction]["copy"]["fixed_us"] == pytest.approx(2)
        assert table[direction]["batch"]["fixed_us"] == pytest.approx(4)
        assert table[direction]["kernel"]["fixed_us"] > 1e5  # never chosen


def test_without_a_device_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert calibrate.main([]) == 1
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.slow
def test_over_the_simulated_device_it_measures_and_stores_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STAGING_COST_TABLE", str(tmp_path / "table.json"))
    monkeypatch.setattr(calibrate, "COUNTS", (1, 4, 16))
    monkeypatch.setattr(calibrate, "SIZES", (64, 4096))
    assert calibrate.main(["--device", "0", "--repetitions", "3"]) == 0
    output = capsys.readouterr().out
    assert "Simulated device" in output
    assert "nothing is stored" in output
    assert output.count("device_to_device") == 3
    assert not (tmp_path / "table.json").exists()
    assert calibrate.main(["--device", "0", "--repetitions", "3", "--json"]) == 0
    captured = capsys.readouterr()
    (report,) = json.loads(captured.out)
    assert (report["device"], report["simulated"]) == (0, True)
    assert cost_table.checked(report["table"]) == report["table"]
    assert "nothing is stored" in captured.err
    assert not (tmp_path / "table.json").exists()


@pytest.mark.cuda
def test_a_device_that_is_not_there_is_refused(capsys):
    with pytest.raises(SystemExit):
        calibrate.main(["--device", "99"])
    assert "--device" in capsys.readouterr().err
