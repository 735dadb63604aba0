"""The long run of a buffer: a million copies, and nothing grows.

    python -m staging sim --policy random python -m benchmarks.staging.soak
    python -m benchmarks.staging.soak --copies 100000        # on a GPU

A step copies a few rows of some of eight buffers on one of three streams, as a model runner
does, and now and then waits for the device or exchanges a buffer for a new one. Resident
memory, pinned bytes and events are looked at twenty times. After the first quarter, in which
pools and caches fill, none of them may be larger than it was then; memory may be by 1 MiB.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import random
import sys
import time

import torch

import staging
from staging import CpuGpuBuffer, sim

LOOKS = 20
SLACK_NBYTES = 1 << 20
PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE")
ROWS = (1, 8, 64, 256, 256, 1024, 4096, 65536)
POLICIES = ("snapshot", "snapshot", "snapshot", "wait")


def resident_nbytes() -> int:
    """Return the process's resident memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * PAGE_NBYTES


def figures() -> dict[str, int]:
    """Return what must stay flat, with nothing in flight."""
    torch.cuda.synchronize()
    gc.collect()
    result = {
        "resident": resident_nbytes(),
        "pinned": staging.pinned_stats().allocated,
        "events": staging.upload_stats().events,
    }
    if sim.active():
        objects = sim.objects()
        result["runtime_events"] = objects.events
        result["runtime_streams"] = objects.streams
    return result


def soak(copies: int, seed: int) -> list[dict[str, int]]:
    """Make this many copies; the figures at every look."""
    choose = random.Random(seed)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]

    def make(rows: int) -> CpuGpuBuffer:
        return CpuGpuBuffer(rows, dtype=torch.int32, device="cuda", reuse=choose.choice(POLICIES))

    buffers = [make(rows) for rows in ROWS]
    looks: list[dict[str, int]] = []
    for step in range(1, copies + 1):
        index = choose.randrange(len(ROWS))
        buffer = buffers[index]
        n = choose.randint(1, min(ROWS[index], 256))
        buffer.np[:n] = step & 0xFFFF
        buffer.copy_to_gpu(n, stream=streams[step % 3])
        if step % 64 == 0:
            torch.cuda.synchronize()
        if step % 1000 == 0:
            buffers[index] = make(ROWS[index])
        if step % (copies // LOOKS) == 0:
            looks.append({"copies": step, **figures()})
    return looks


def grown(looks: list[dict[str, int]]) -> dict[str, tuple[int, int]]:
    """Return the figures that were larger at the end than in the first quarter."""
    warm = looks[: LOOKS // 4 + 1]
    result = {}
    for name in looks[0].keys() - {"copies"}:
        before, after = max(look[name] for look in warm), looks[-1][name]
        slack = SLACK_NBYTES if name in ("resident", "pinned") else 0
        if after > before + slack:
            result[name] = (before, after)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 where something grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    start = time.monotonic()
    looks = soak(max(LOOKS, options.copies), options.seed)
    for look in looks:
        print(json.dumps(look))
    where = "the simulated device" if sim.active() else torch.cuda.get_device_name()
    print(f"{options.copies} copies in {time.monotonic() - start:.0f} s over {where}")
    larger = grown(looks)
    for name, (before, after) in larger.items():
        print(f"{name} grew from {before} to {after}", file=sys.stderr)
    return 1 if larger else 0


if __name__ == "__main__":
    sys.exit(main())
