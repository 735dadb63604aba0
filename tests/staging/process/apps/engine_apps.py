"""Engines for the tests of the process that engines run in."""

from __future__ import annotations

import os
import time

NUMBER = 7


def patient(context, *, engine_index):
    """Wait for SIGTERM, and take a while to put things away."""
    print("hello from an engine", flush=True)
    try:
        context.beat()
        context.ready()
        time.sleep(600)
    finally:
        time.sleep(0.2)
        with open(os.environ["ENGINE_EVENTS"], "a", encoding="utf-8") as file:
            file.write("put away\n")
