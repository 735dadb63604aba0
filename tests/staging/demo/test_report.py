"""The report says what was found, on which device, and what its times are not."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console

from staging.demo.corpus import Document, cut
from staging.demo.loop import Loop, run_beside
from staging.demo.place import Place
from staging.demo.reader import Mismatch
from staging.demo.report import Run, print_report, progress_bars, to_json, verdict
from staging.demo.request_table import Limits
from staging.demo.stagers import BufferStager, PlainStager

LIMITS = Limits(requests=4, step_tokens=64)
TEXT = [Document("text.txt", b"the tide waits for no copy " * 40)]
STEPS = 12


def counters():
    counters.calls += 1
    return {"cudaMemcpyAsync": 17 * counters.calls, "cudaNever": 3}


counters.calls = 0

PLACES = {
    "cpu": Place(torch.device("cpu"), "cpu", "CPU"),
    "cuda": Place(torch.device("cpu"), "cuda", "A GPU"),
    "simulated": Place(torch.device("cpu"), "simulated", "Simulated device", "lazy", counters),
}


@pytest.fixture(params=PLACES)
def place(request):
    return PLACES[request.param]


def run_loops(place):
    loops = [
        Loop(make, place=place, limits=LIMITS, source=cut(TEXT, seed=0))
        for make in (PlainStager, BufferStager)
    ]
    run_beside(loops, STEPS)
    return Run(place, LIMITS, TEXT, STEPS, 2, 0, 0.0), loops


def spoil(loop):
    loop.findings.wrong_steps = 3
    loop.findings.wrong_bytes = 1024
    loop.findings.wrong_inputs["input_ids"] = 3
    loop.findings.first = Mismatch(
        5, "input_ids", 2, tuple(b"the host's"), tuple(b"something\x00else")
    )


def printed(run, loops):
    out = io.StringIO()
    print_report(run, loops, Console(file=out, width=100))
    return out.getvalue()


NUMBER = (int, float)
QUANTILES = {"median": NUMBER, "mean": NUMBER, "p99": NUMBER}
LOOP = {
    "steps": int,
    "checked_steps": int,
    "wrong_steps": int,
    "wrong_bytes": int,
    "wrong_inputs": dict,
    "first_wrong": (dict, type(None)),
    "tokens": int,
    "requests_finished": int,
    "bytes_staged": int,
    "measured_steps": int,
    "stage_us": QUANTILES,
    "build_us": QUANTILES,
    "runtime_calls_per_step": (dict, type(None)),
}
SCHEMA = {
    "device": {"kind": str, "name": str, "policy": (str, type(None))},
    "note": str,
    "workload": {
        "steps": int,
        "seed": int,
        "ahead": int,
        "requests": int,
        "step_tokens": int,
        "cache_blocks": int,
        "model_ms": NUMBER,
        "documents": list,
        "text_bytes": int,
        "inputs": list,
    },
    "loops": {"plain": LOOP, "staging": LOOP},
    "ok": bool,
}


def check_schema(value, schema, where="report"):
    if isinstance(schema, dict):
        assert set(value) == set(schema), where
        for name, inner in schema.items():
            check_schema(value[name], inner, f"{where}.{name}")
    else:
        assert isinstance(value, schema), f"{where} is {value!r}"


def test_json_keeps_to_its_schema(place):
    run, loops = run_loops(place)
    spoil(loops[0])
    report = json.loads(json.dumps(to_json(run, loops)))
    check_schema(report, SCHEMA)
    assert report["ok"] is True
    assert report["device"]["kind"] == place.kind
    plain = report["loops"]["plain"]
    assert (plain["wrong_steps"], plain["wrong_inputs"]) == (3, {"input_ids": 3})
    assert plain["first_wrong"]["meant"] == list(b"the host's")
    assert report["loops"]["staging"]["first_wrong"] is None
    assert report["workload"]["text_bytes"] == len(TEXT[0].text)


def test_calls_are_given_only_where_they_are_counted():
    for kind, wanted in (("cpu", None), ("cuda", None), ("simulated", {"cudaMemcpyAsync": 17})):
        run, loops = run_loops(PLACES[kind])
        figures = to_json(run, loops)["loops"]["staging"]
        assert figures["runtime_calls_per_step"] == wanted, kind
        text = printed(run, loops)
        assert ("not counted" in text) is (wanted is None)
        assert ("cudaMemcpyAsync" in text) is (wanted is not None)
        assert "cudaNever" not in text


def test_the_table_says_on_which_device_and_what_its_times_are_not(place):
    run, loops = run_loops(place)
    text = " ".join(printed(run, loops).split())
    assert f"on: {place.name}" in text
    assert ("Simulated host times are not device times" in text) is (place.kind == "simulated")
    assert ("schedule: lazy" in text) is (place.kind == "simulated")
    assert place.caveat in text
    assert f"staging: in all {STEPS} steps the device read what the host meant" in text


def test_the_first_wrong_step_is_shown_as_text(place):
    run, loops = run_loops(place)
    spoil(loops[0])
    text = printed(run, loops)
    assert f"plain: in 3 of {STEPS} steps the device did not read what the host meant" in text
    assert "step 5, input_ids from index 2" in text
    assert "the host meant   “the host's”" in text
    assert "the device read  “something else”" in text
    loops[0].findings.first = Mismatch(5, "temperature", 0, (0.5,) * 9, (1.0,))
    text = printed(run, loops)
    assert "the host meant   0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, …" in text


def test_text_with_markup_in_it_is_printed_as_it_is():
    run, loops = run_loops(PLACES["cpu"])
    spoil(loops[0])
    loops[0].findings.first = Mismatch(0, "input_ids", 0, tuple(b"[red]x[/blue]"), tuple(b"[/]"))
    assert "[red]x[/blue]" in printed(run, loops)


def test_only_the_plain_loop_may_be_wrong():
    _, loops = run_loops(PLACES["cpu"])
    assert verdict(loops)
    spoil(loops[0])
    assert verdict(loops)
    spoil(loops[1])
    assert not verdict(loops)


def test_a_loop_that_was_not_checked_is_not_right():
    _, loops = run_loops(PLACES["cpu"])
    loops[1].findings.checked_steps -= 1
    assert not verdict(loops)
    unrun = Loop(BufferStager, place=PLACES["cpu"], limits=LIMITS, source=cut(TEXT, seed=0))
    assert not verdict([unrun])


def test_progress_shows_both_loops():
    _, loops = run_loops(PLACES["cpu"])
    out = io.StringIO()
    with progress_bars(loops, STEPS, stream=out) as moved:
        for loop in loops:
            moved(loop)
    text = out.getvalue()
    for loop in loops:
        assert loop.name in text
    assert text.count(f"{STEPS}/{STEPS} steps, 0 wrong") == 2
