"""The long run: every end of a server many times, and every verdict a thousand times.

    python -m benchmarks.staging.process.soak --rounds 100 --verdicts 1000

Each round starts a supervisor with its children, brings it to one of the ends in
`process_scenarios`, and checks that a second after its deadline no process, port, ipc
file, shared memory or zombie of it is left, and that the next one starts on the same
port. Each verdict run lets one to eight workers exit with 0, and none may be reported.
The figures are seconds from the event to nothing left, of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/staging/process/support")]

import process_scenarios  # noqa: E402 - found through the line above


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return the figures of one kind of run."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {
        "median_s": round(statistics.median(ordered), 3),
        "p95_s": round(ordered[max(0, -(-len(ordered) * 95 // 100) - 1)], 3),
        "max_s": round(ordered[-1], 3),
    }


@contextmanager
def progress(total: int, *, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    """Show a bar; yield a function that is told what is run, and how many are done."""
    if quiet or not sys.stderr.isatty():
        said = ""

        def tell(what: str, done: int) -> None:
            nonlocal said
            if not quiet and what != said:
                said = what
                print(what, file=sys.stderr, flush=True)

        yield tell
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda what, done: bar.update(task, description=what, advance=done)


def run_scenario(
    name: str,
    rounds: int,
    *,
    seed: int,
    port: int,
    allowance: float,
    tell: Callable[[str, int], None],
) -> dict[str, Any]:
    """Run one scenario; return its figures and failures."""
    seconds, failures = [], []
    for index in range(rounds):
        tell(name, 0)
        try:
            seconds.append(
                process_scenarios.run_round(name, index, seed=seed, port=port, allowance=allowance)
            )
        except AssertionError as error:
            failures.append(str(error))
        tell(name, 1)
    return {"rounds": rounds, "failures": failures, **summary(seconds)}


def run_verdicts(runs: int, *, seed: int, tell: Callable[[str, int], None]) -> dict[str, Any]:
    """Run the verdicts; return their figures and failures."""
    seconds: list[float] = []
    failures = []
    while len(seconds) + len(failures) < runs:
        try:
            left = runs - len(seconds) - len(failures)
            tell("verdicts", 0)
            for value in process_scenarios.run_verdicts(left, seed=seed + len(failures)):
                seconds.append(value)
                tell("verdicts", 1)
        except RuntimeError as error:
            failures.append(f"seed {seed}, run {len(seconds) + len(failures)}: {error}")
            tell("verdicts", 1)
    return {"runs": runs, "failures": failures, **summary(seconds)}


def print_table(result: dict[str, Any]) -> None:
    """Print the figures for people."""
    print(f"{'':<28}{'runs':>6}{'failed':>8}{'median':>10}{'p95':>10}{'max':>10}  (seconds)")
    rows = {**result["scenarios"], "verdicts (1-8 workers)": result["verdicts"]}
    for name, row in rows.items():
        runs = row.get("rounds", row.get("runs"))
        figures = "".join(
            f"{row[key]:>10.3f}" if key in row else f"{'-':>10}"
            for key in ("median_s", "p95_s", "max_s")
        )
        print(f"{name:<28}{runs:>6}{len(row['failures']):>8}{figures}")
        for failure in row["failures"]:
            print(f"  {failure}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak; return 1 if anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100, help="of each scenario (%(default)s)")
    parser.add_argument("--verdicts", type=int, help="runs of the verdicts (ten for each round)")
    parser.add_argument(
        "--scenario",
        action="append",
        choices=sorted(process_scenarios.SCENARIOS),
        help="run only this one; may be repeated",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument(
        "--allowance",
        type=float,
        default=3.0,
        help="times the promised time that may pass on a busy machine (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args(argv)

    # So that an interrupted soak, too, ends what it has started.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    names = arguments.scenario or list(process_scenarios.SCENARIOS)
    verdicts = 10 * arguments.rounds if arguments.verdicts is None else arguments.verdicts
    port = process_scenarios.free_port()
    begin = time.monotonic()
    total = arguments.rounds * len(names) + verdicts
    with process_scenarios.subreaper(), progress(total, quiet=arguments.json) as tell:
        scenarios = {
            name: run_scenario(
                name,
                arguments.rounds,
                seed=arguments.seed,
                port=port,
                allowance=arguments.allowance,
                tell=tell,
            )
            for name in names
        }
        told = run_verdicts(verdicts, seed=arguments.seed, tell=tell)
    result = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "seed": arguments.seed,
        "allowance": arguments.allowance,
        "seconds": round(time.monotonic() - begin, 1),
        "scenarios": scenarios,
        "verdicts": told,
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print_table(result)
    failed = any(row["failures"] for row in [*scenarios.values(), told])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
