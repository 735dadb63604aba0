"""``python -m staging demo``: options, and the exit status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

DESCRIPTION = """\
Prepare and stage the inputs of a model runner, step after step, and check every byte.

Text is cut into requests and tokenised by bytes; a continuous-batching scheduler runs up
to 256 of them at once, prompts in chunks, then a token a step. Each step's arrays are
built on the host and staged to the device, where a stream-ordered reader logs what it
sees. Three loops do the same work in turns: one stages with the usual pinned tensors and
copy_(non_blocking=True), one with a staging.CpuGpuBuffer for each array, one with a
staging.StagingGroup of all. At the end each byte that the device read is compared with what
the host meant.

Without a GPU the demo runs itself over the simulated device, with the schedule "lazy":
copies run as late as CUDA permits."""

EPILOG = """\
example:
  python -m staging demo --steps 500 --seed 7 README.md

exit status: 0 when the device read every byte of the staging loops as the host meant it,
1 when it did not, 2 for wrong options. The plain loop's wrong steps are shown and do not
count."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    result = argparse.ArgumentParser(
        prog="python -m staging demo",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "files", nargs="*", metavar="FILE", help="texts to serve (default: those of the package)"
    )
    result.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto: a GPU where there is one, else the simulated device, else the CPU; "
        "cuda: a GPU, or what 'python -m staging sim' puts in its place",
    )
    result.add_argument(
        "--steps", type=_positive, default=1000, metavar="N", help="steps of each loop (1000)"
    )
    result.add_argument(
        "--requests", type=_positive, default=256, metavar="N", help="requests at once (256)"
    )
    result.add_argument(
        "--tokens", type=_positive, default=2048, metavar="N", help="token budget of a step (2048)"
    )
    result.add_argument(
        "--ahead",
        type=_positive,
        default=2,
        metavar="N",
        help="steps that the host may be ahead of the device (2); with 1 it waits for each step "
        "before it builds the next, and the plain loop is right, too",
    )
    result.add_argument(
        "--model-ms",
        type=_duration,
        default=2.0,
        metavar="MS",
        help="on a GPU, device time of the matrix products that stand for the model in each step "
        "(2); 0 for none. On other devices there are none",
    )
    result.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="of lengths, parameters, schedule (0)"
    )
    result.add_argument(
        "--json", action="store_true", help="print the figures as JSON instead of a table"
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo.

    Parameters
    ----------
    argv
        The command's arguments; those of the process by default.

    Returns
    -------
    int
        0 where no loop but the plain one had a wrong step, 1 where one had, 2 for options
        that do not fit, a file that cannot be read or a device that is not there.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(arguments)
    if not options.json and not _rich_is_there():
        return _fail(
            "the table and the progress bar need rich: pip install 'tensor-staging[demo]', or "
            "ask for --json"
        )
    from staging.demo import corpus, place
    from staging.demo.request_table import Limits

    try:
        limits = Limits(requests=options.requests, step_tokens=options.tokens)
        documents = (
            corpus.read_documents(options.files) if options.files else corpus.shipped_documents()
        )
        place.rerun_over_simulated_device(options.device, arguments, seed=options.seed)
        where = place.find(options.device)
        where.require_transfers()
    except (ValueError, OSError, place.NoDevice) as error:
        return _fail(str(error))

    from staging.demo.loop import Loop, run_beside
    from staging.demo.model import Model
    from staging.demo.report import Run, print_report, progress_bars, to_json, verdict
    from staging.demo.stagers import STAGERS

    # A simulated device has no time of its own to fill.
    model_ms = options.model_ms if where.kind == "cuda" else 0.0
    model = Model(where.device, step_ms=model_ms) if model_ms else None
    loops = [
        Loop(
            stager,
            place=where,
            limits=limits,
            source=corpus.cut(documents, seed=options.seed),
            ahead=options.ahead,
            model=model,
        )
        for stager in STAGERS
    ]
    run = Run(where, limits, documents, options.steps, options.ahead, options.seed, model_ms)
    try:
        if options.json:
            run_beside(loops, options.steps)
        else:
            with progress_bars(loops, options.steps) as moved:
                run_beside(loops, options.steps, progress=moved)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    for loop in loops:
        loop.close()

    if options.json:
        print(json.dumps(to_json(run, loops), indent=2))
    else:
        from rich.console import Console

        print_report(run, loops, Console())
    return 0 if verdict(loops) else 1


def _fail(text: str) -> int:
    print(f"staging demo: {text}", file=sys.stderr)
    return 2


def _rich_is_there() -> bool:
    from importlib.util import find_spec

    return find_spec("rich") is not None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {value}")
    return value


def _duration(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e4:
        raise argparse.ArgumentTypeError(f"must be 0 to 10,000 ms, got {text}")
    return value
