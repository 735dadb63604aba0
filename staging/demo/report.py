"""What the demo says: progress while it runs, then a table or JSON."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from staging.demo.corpus import Document, detokenize
from staging.demo.loop import Loop
from staging.demo.place import Place
from staging.demo.reader import Mismatch
from staging.demo.request_table import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

PLAIN = "plain"


@dataclass(frozen=True)
class Run:
    """What was run: enough to repeat it."""

    place: Place
    limits: Limits
    documents: Sequence[Document]
    steps: int
    ahead: int
    seed: int
    model_ms: float


def to_json(run: Run, loops: Sequence[Loop]) -> dict[str, Any]:
    """Return all figures as JSON types.

    ``loops`` has an object for each way of staging; in it, times are host times in µs of
    the staging part of a step, and ``runtime_calls_per_step`` is null where nobody counts
    them. ``ok`` is the demo's verdict: no wrong step in any loop but the plain one.
    """
    place, limits = run.place, run.limits
    return {
        "device": {"kind": place.kind, "name": place.name, "policy": place.policy},
        "note": place.caveat,
        "workload": {
            "steps": run.steps,
            "seed": run.seed,
            "ahead": run.ahead,
            "requests": limits.requests,
            "step_tokens": limits.step_tokens,
            "cache_blocks": limits.cache_blocks,
            "model_ms": run.model_ms,
            "documents": [document.name for document in run.documents],
            "text_bytes": sum(len(document.text) for document in run.documents),
            "inputs": [spec.name for spec in loops[0].builder.specs],
        },
        "loops": {loop.name: _figures(loop, run.place) for loop in loops},
        "ok": verdict(loops),
    }


def verdict(loops: Sequence[Loop]) -> bool:
    """Whether every loop but the plain one was checked, and had no wrong step."""
    return all(
        loop.findings.wrong_steps == 0 and loop.findings.checked_steps == loop.steps > 0
        for loop in loops
        if loop.name != PLAIN
    )


def _figures(loop: Loop, place: Place) -> dict[str, Any]:
    found = loop.findings
    measured = loop.measured_steps
    counted = place.kind == "simulated" and measured > 0
    return {
        "steps": loop.steps,
        "checked_steps": found.checked_steps,
        "wrong_steps": found.wrong_steps,
        "wrong_bytes": found.wrong_bytes,
        "wrong_inputs": dict(found.wrong_inputs),
        "first_wrong": None if found.first is None else _mismatch(found.first),
        "tokens": loop.tokens,
        "requests_finished": loop.scheduler.finished,
        "bytes_staged": loop.staged_bytes,
        "measured_steps": measured,
        "stage_us": _quantiles(loop.stage_us),
        "build_us": _quantiles(loop.build_us),
        "runtime_calls_per_step": (
            {name: count / measured for name, count in sorted(loop.calls.items())}
            if counted
            else None
        ),
    }


def _quantiles(values: Any) -> dict[str, float] | None:
    if not len(values):
        return None
    return {
        "median": float(np.median(values)),
        "mean": float(np.mean(values)),
        "p99": float(np.percentile(values, 99)),
    }


def _mismatch(first: Mismatch) -> dict[str, Any]:
    return {
        "step": first.step,
        "input": first.input,
        "index": first.index,
        "meant": list(first.meant),
        "read": list(first.read),
    }


# -- for people ---------------------------------------------------------------------------


@contextmanager
def progress_bars(
    loops: Sequence[Loop], steps: int, *, stream: Any = None
) -> Iterator[Callable[[Loop], None]]:
    """Show a bar for each loop on ``stream`` (standard error) and yield what moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(file=sys.stderr if stream is None else stream)
    with Progress(
        TextColumn("{task.description:>8}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TextColumn("steps, {task.fields[wrong]} wrong"),
        console=console,
    ) as progress:
        tasks = {loop.name: progress.add_task(loop.name, total=steps, wrong=0) for loop in loops}

        def moved(loop: Loop) -> None:
            progress.update(tasks[loop.name], completed=loop.steps, wrong=loop.findings.wrong_steps)

        yield moved


def print_report(run: Run, loops: Sequence[Loop], console: Console) -> None:
    """Print the table, and what it means."""
    from rich.table import Table
    from rich.text import Text

    place = run.place
    simulated = place.kind == "simulated"
    specs = loops[0].builder.specs
    table = Table(
        title=f"{len(specs)} input arrays per step, on: {place_name(place)}", title_justify="left"
    )
    table.add_column("")
    for loop in loops:
        table.add_column(loop.name, justify="right")

    def row(label: str, values: Sequence[str | Text]) -> None:
        table.add_row(label, *values)

    row("steps", [f"{loop.steps:,}" for loop in loops])
    row("bytes staged", [_mebibytes(loop.staged_bytes) for loop in loops])
    medians = [float(np.median(loop.stage_us)) for loop in loops]
    row(
        "host time per step" + (", simulated device" if simulated else ""),
        [f"{value:,.1f} µs" for value in medians],
    )
    row("  times less than plain", ["", *(f"{medians[0] / value:.1f}" for value in medians[1:])])
    if simulated:
        totals = [sum(_calls(loop).values()) for loop in loops]
        row("runtime calls per step", [f"{total:,.1f}" for total in totals])
        for name in sorted({name for loop in loops for name in loop.calls}):
            counts = [_calls(loop).get(name, 0.0) for loop in loops]
            if max(counts) >= 0.05:  # the others are part of the sum, and of --json
                row(f"  {name}", [f"{count:,.1f}" for count in counts])
    else:
        row("runtime calls per step", ["not counted"] * len(loops))
    row("wrong bytes", [_mebibytes(loop.findings.wrong_bytes) for loop in loops])
    table.add_section()
    row(
        "[bold]wrong steps",
        [
            Text(f"{found.wrong_steps:,}", style="bold red" if found.wrong_steps else "bold green")
            for found in (loop.findings for loop in loops)
        ],
    )
    console.print(table)
    console.print(
        f"Host time: median of the staging part. {place.caveat}",
        _workload(run, loops[-1]),
        sep="\n",
        highlight=False,
        markup=False,
    )
    for loop in loops:
        console.print()
        console.print(_outcome(loop, place), highlight=False, markup=False)


def place_name(place: Place) -> str:
    """Return the device in words."""
    return place.name + (f", schedule: {place.policy}" if place.policy else "")


def _calls(loop: Loop) -> Mapping[str, float]:
    return {name: count / max(1, loop.measured_steps) for name, count in loop.calls.items()}


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count else "0"


def _workload(run: Run, loop: Loop) -> str:
    texts = len(run.documents)
    size = sum(len(document.text) for document in run.documents)
    text = (
        f"Workload: {texts} text{'s' if texts != 1 else ''} ({size:,} bytes) as requests, up to "
        f"{run.limits.requests} at once, {math.ceil(loop.tokens / max(1, loop.steps)):,} tokens a "
        f"step, {loop.scheduler.finished:,} requests finished, seed {run.seed}. Scheduling a step "
        f"and building its arrays took {np.median(loop.build_us):,.0f} µs more."
    )
    if run.place.kind != "cpu":
        text += (
            f" The host ran up to {run.ahead} step{'s' if run.ahead != 1 else ''} ahead of the "
            "device."
        )
    if run.model_ms:
        text += f" Matrix products of {run.model_ms:g} ms a step stood for the model."
    return text


def _outcome(loop: Loop, place: Place) -> str:
    found = loop.findings
    if not found.wrong_steps:
        text = (
            f"{loop.name}: in all {found.checked_steps:,} steps the device read what the host "
            f"meant, {found.checked_bytes:,} bytes."
        )
        if loop.name == PLAIN and place.kind != "cpu":
            text += " Nothing made sure of that: each copy ran before its array was overwritten."
        return text
    text = (
        f"{loop.name}: in {found.wrong_steps:,} of {found.checked_steps:,} steps the device did "
        "not read what the host meant."
    )
    first = found.first
    if first is not None:
        show = _as_text if first.input == "input_ids" else _as_numbers
        text += (
            f"\n  The first was step {first.step}, {first.input} from index {first.index} on:"
            f"\n    the host meant   {show(first.meant)}"
            f"\n    the device read  {show(first.read)}"
        )
    return text


def _as_text(values: Sequence[float | int]) -> str:
    text = detokenize(int(value) for value in values)
    return "“" + "".join(c if c.isprintable() else " " for c in text[:48]) + "”"


def _as_numbers(values: Sequence[float | int]) -> str:
    return ", ".join(f"{value:g}" for value in values[:8]) + (", …" if len(values) > 8 else "")
