"""``python -m staging sim COMMAND``: run a program over the simulated device.

Nothing is loaded here: the program is started anew with the stand-in for the CUDA
runtime preloaded, so that it is there before PyTorch looks for it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

LIBRARIES = Path(__file__).resolve().parent / "lib"
RUNTIME = LIBRARIES / "libstaging_sim_cudart.so"
DRIVER = LIBRARIES / "driver"
POLICIES = ("eager", "lazy", "random", "threads", "null")

_EPILOG = """\
policies:
  eager    work runs at once, in the enqueuing thread: for counting host cost
  lazy     as late as CUDA permits: a copy runs when the host waits for it
  random   ready work of any stream, in seeded order
  threads  worker threads with seeded delays
  null     as eager, but copies, fills and kernels do nothing: for host cost alone

examples:
  python -m staging sim python -c "import torch; print(torch.zeros(3, device='cuda').cpu())"
  python -m staging sim --policy lazy --seed 7 --devices 2 python -m pytest tests

Nothing that is measured over it is a device's speed.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m staging sim",
        description="Run a command over the simulated device: a host-side stand-in for the "
        "CUDA runtime, so that CUDA builds run unchanged on a machine without a GPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--policy", choices=POLICIES, default="eager", help="when work runs (default: eager)"
    )
    parser.add_argument("--seed", type=_not_negative, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--devices", type=_not_negative, default=1, metavar="N", help="how many (default: 1)"
    )
    parser.add_argument(
        "--capacity",
        type=_not_negative,
        metavar="BYTES",
        help="memory of each device (default: 16 GiB, of which only what is used is taken)",
    )
    parser.add_argument(
        "--pageable-async",
        action="store_true",
        help="asynchronous copies use pageable memory late, which CUDA's documentation permits "
        "and its drivers do not do",
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="write each process's calls to FILE when it ends, as JSON lines",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {value}")
    return value


def environment(
    *,
    policy: str = "eager",
    seed: int = 0,
    devices: int = 1,
    capacity: int | None = None,
    pageable_async: bool = False,
    record: str | None = None,
    base: dict[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment in which a program finds the simulated device.

    Parameters
    ----------
    policy, seed
        When work runs; see ``python -m staging sim --help``.
    devices
        How many there are, 0 to 16.
    capacity
        Memory of each device, in bytes.
    pageable_async
        Whether asynchronous copies use pageable memory late.
    record
        File for the call record.
    base
        The environment to start from; ``os.environ`` by default.

    Returns
    -------
    dict
        ``base`` with ``LD_PRELOAD``, ``LD_LIBRARY_PATH`` and ``STAGING_SIM_*`` set.

    Raises
    ------
    FileNotFoundError
        The libraries were not built.
    """
    if not RUNTIME.is_file() or not (DRIVER / "libcuda.so.1").is_file():
        raise FileNotFoundError(
            f"the simulated device is not built: there is no {RUNTIME}. It is part of a CUDA "
            "build of this package (STAGING_CUDA=on, nvcc and a CUDA build of torch)"
        )
    env = dict(os.environ if base is None else base)
    preloaded = [
        path for path in env.get("LD_PRELOAD", "").split(":") if path and path != str(RUNTIME)
    ]
    env["LD_PRELOAD"] = ":".join([str(RUNTIME), *preloaded])
    folders = [
        path for path in env.get("LD_LIBRARY_PATH", "").split(":") if path and path != str(DRIVER)
    ]
    env["LD_LIBRARY_PATH"] = ":".join([str(DRIVER), *folders])
    env["STAGING_SIM_POLICY"] = policy
    env["STAGING_SIM_SEED"] = str(seed)
    env["STAGING_SIM_DEVICES"] = str(devices)
    env["STAGING_SIM_PAGEABLE_ASYNC"] = "1" if pageable_async else "0"
    for name, value in (("STAGING_SIM_CAPACITY", capacity), ("STAGING_SIM_RECORD", record)):
        if value is None:
            env.pop(name, None)
        else:
            env[name] = str(value)
    return env


def main(argv: Sequence[str] | None = None) -> int:
    """Replace this process by a command that runs over the simulated device.

    Parameters
    ----------
    argv
        Options and the command; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        2 where there is nothing to run, 127 where the command does not exist; otherwise
        this does not return.
    """
    options = _parser().parse_args(argv)
    command: list[str] = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("staging sim: no command was given. Try --help.", file=sys.stderr)
        return 2
    record = options.record
    if record is not None:
        # Every process of the command appends to it.
        record = str(Path(record).resolve())
        Path(record).write_text("")
    try:
        env = environment(
            policy=options.policy,
            seed=options.seed,
            devices=options.devices,
            capacity=options.capacity,
            pageable_async=options.pageable_async,
            record=record,
        )
    except FileNotFoundError as error:
        print(f"staging sim: {error}", file=sys.stderr)
        return 2
    # "python" means this interpreter, whatever PATH says.
    program = sys.executable if command[0] == "python" else shutil.which(command[0])
    if program is None:
        print(f"staging sim: there is no command {command[0]!r}", file=sys.stderr)
        return 127
    sys.stdout.flush()
    os.execve(program, [command[0] if command[0] != "python" else program, *command[1:]], env)
