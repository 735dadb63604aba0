"""``python -m staging calibrate``: measure what each way of copying costs on this machine."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from staging import cost_table
from staging.cost_table import DIRECTIONS, METHODS, CostTable, MethodCost
from staging.extension import _C, torch

COUNTS = (1, 2, 4, 16, 64, 256)
SIZES = (64, 512, 4096, 16 << 10, 64 << 10, 256 << 10)
# No measurement moves more than this.
LARGEST_NBYTES = 32 << 20
# A method that a device does not have is never chosen.
_NEVER = MethodCost(fixed_us=1e6, item_us=1e6, gb_per_s=1e-3)

_EPILOG = """\
Each way of copying (one by one, in a batch, by a kernel) is timed for several numbers of items
and sizes, from the call until the stream is idle, and a line is fitted:
  fixed_us + items * item_us + bytes / gb_per_s
The table is stored under the host's and the device's name. docs/cost-table.md says more.

Do it on an idle machine. Over the simulated device nothing is stored.

example:
  python -m staging calibrate --dry-run
"""


@dataclass(frozen=True)
class Point:
    """One measurement: the median of several, in microseconds."""

    count: int
    nbytes: int  # of each item
    total_us: float


def measure(
    device: int, direction: str, method: str, *, repetitions: int = 20
) -> list[Point] | None:
    """Time one way of copying for every count and size.

    Parameters
    ----------
    device
        The CUDA device.
    direction, method
        See `staging.cost_table.DIRECTIONS` and ``METHODS``.
    repetitions
        Copies for each point; their median counts.

    Returns
    -------
    list of Point, or None where the device does not have the method.

    Notes
    -----
    Waits for each copy. Runs on a stream of its own.
    """
    cells = [(c, n) for c in COUNTS for n in SIZES if c * n <= LARGEST_NBYTES]
    nbytes = max(_C.time_copies_nbytes(c, n) for c, n in cells)
    on_device = torch.zeros(nbytes, dtype=torch.uint8, device=f"cuda:{device}")
    if direction == "device_to_device":
        other = torch.zeros_like(on_device)
    else:
        other = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
    to, from_ = (other, on_device) if direction == "device_to_host" else (on_device, other)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    points = []
    with torch.cuda.stream(stream):
        for count, size in cells:
            _C.repeat_copies(direction, method, to, from_, count, size, 3)  # warm up
            times = _C.time_copies(direction, method, to, from_, count, size, repetitions)
            if times is None:
                return None
            median = statistics.median(total for _, total in times)
            points.append(Point(count, size, median))
    stream.synchronize()
    return points


def fit(points: Sequence[Point], *, per_item: bool) -> tuple[float, MethodCost]:
    """Fit the model to measurements.

    Parameters
    ----------
    points
        The measurements of one method.
    per_item
        Each item is an operation of its own: what an item costs becomes ``fixed_us``.

    Returns
    -------
    float
        What a call costs that is not an item's or a byte's, in microseconds: of plain copies,
        the wait that was measured along.
    MethodCost
        With ``fixed_us`` that includes it, unless ``per_item``.

    Notes
    -----
    Least squares of the relative errors, so that small copies count as much as large ones;
    terms that come out negative are left out and the others fitted again.
    """
    total = np.array([point.total_us for point in points])
    terms = np.array([[1.0, p.count, p.count * p.nbytes] for p in points]) / total[:, None]
    used = [0, 1, 2]
    solution = np.zeros(3)
    while used:
        found, *_ = np.linalg.lstsq(terms[:, used], np.ones(len(points)), rcond=None)
        if (found >= 0).all():
            solution[used] = found
            break
        used = [term for term, value in zip(used, found, strict=True) if value > 0]
    call_us, item_us, byte_us = (float(value) for value in solution)
    gb_per_s = 1e-3 / max(byte_us, 1e-9)
    if per_item:
        return call_us, MethodCost(fixed_us=item_us, item_us=0.0, gb_per_s=gb_per_s)
    return call_us, MethodCost(fixed_us=call_us, item_us=item_us, gb_per_s=gb_per_s)


def calibrate(
    device: int, *, repetitions: int = 20, progress: Callable[[str], None] = lambda _: None
) -> CostTable:
    """Measure a device and return its table.

    Parameters
    ----------
    device
        The CUDA device.
    repetitions
        Copies for each point.
    progress
        Called with what is about to be measured: "3/9 host_to_device kernel".
    """
    table: CostTable = {}
    methods = [(direction, method) for direction in DIRECTIONS for method in METHODS]

    def announce(direction: str, method: str) -> None:
        done = methods.index((direction, method))
        progress(f"{done + 1}/{len(methods)} {direction} {method}")

    for direction in DIRECTIONS:
        announce(direction, "copy")
        copies = measure(device, direction, "copy", repetitions=repetitions)
        assert copies is not None  # every device copies
        waiting_us, cost = fit(copies, per_item=True)
        table[direction] = {"copy": cost}
        for method in METHODS[1:]:
            announce(direction, method)
            points = measure(device, direction, method, repetitions=repetitions)
            if points is None:
                table[direction][method] = _NEVER
                continue
            _, cost = fit(points, per_item=False)
            # Every measurement ends with a wait, which no copy of a step has.
            cost["fixed_us"] = max(0.0, cost["fixed_us"] - waiting_us)
            table[direction][method] = cost
    return cost_table.checked(table)


def lines(table: CostTable) -> list[str]:
    """Return a table as text."""
    result = [f"{'direction':<17} {'method':<7} {'fixed µs':>9} {'item µs':>9} {'GB/s':>9}"]
    for direction in DIRECTIONS:
        for method in METHODS:
            cost = table[direction][method]
            numbers = (cost["fixed_us"], cost["item_us"], cost["gb_per_s"])
            result.append(
                f"{direction:<17} {method:<7} " + " ".join(f"{number:9.3f}" for number in numbers)
            )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m staging calibrate",
        description="Measure what each way of copying costs on this machine, and store it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", type=int, action="append", metavar="N", help="default: every CUDA device"
    )
    parser.add_argument(
        "--repetitions", type=int, default=20, metavar="N", help="copies a point (default: 20)"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the tables, store nothing")
    parser.add_argument(
        "--json", action="store_true", help="print the tables as JSON; the rest goes to stderr"
    )
    arguments = parser.parse_args(argv)
    if arguments.repetitions < 1:
        parser.error(f"--repetitions must be >= 1, got {arguments.repetitions}")
    if not torch.cuda.is_available():
        print("calibrate: torch sees no CUDA device", file=sys.stderr)
        return 1
    from staging import sim

    def say(line: str = "") -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout)

    store = not arguments.dry_run
    simulated = sim.active()
    if simulated:
        say("Simulated device: these are host times, not a device's; nothing is stored.\n")
        store = False
    devices = arguments.device if arguments.device else range(torch.cuda.device_count())
    for device in devices:
        if not 0 <= device < torch.cuda.device_count():
            parser.error(f"--device must be in 0..{torch.cuda.device_count() - 1}, got {device}")
    report: list[dict[str, object]] = []
    for device in devices:
        name = torch.cuda.get_device_name(device)
        say(f"cuda:{device}: {name}")
        table = calibrate(device, repetitions=arguments.repetitions, progress=_show_progress)
        _show_progress("")
        entry: dict[str, object] = {"device": device, "name": name, "simulated": simulated}
        if arguments.json:
            report.append({**entry, "table": table})
        else:
            say("\n".join(lines(table)))
        if store:
            file = cost_table.store(
                device,
                table,
                measured=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                torch=torch.__version__,
                cuda=torch.version.cuda,
            )
            say(f"stored in {file}")
        say()
    if arguments.json:
        print(json.dumps(report, indent=1))
    return 0


def _show_progress(step: str) -> None:
    """Show a step where somebody watches, in place of the one before."""
    if sys.stderr.isatty():
        print(f"\r\033[K{step}", end="", file=sys.stderr, flush=True)
