"""Engines that run as Ray actors, each good or bad in one way."""

from __future__ import annotations

import os
import pathlib
import sys
import time


def obedient(folder, *, engine_index, stop):
    """Run until asked to stop; leave a file that says so."""
    path = pathlib.Path(folder) / str(engine_index)
    path.write_text("running")
    stop.wait()
    path.write_text("stopped")


def deaf(*, engine_index, stop):
    time.sleep(600)


def without_stop(*, engine_index):
    time.sleep(600)


def failing(how, *, engine_index, stop):
    """End at once as `how` says, if it is engine 1; the others run."""
    if engine_index != 1:
        stop.wait()
    elif how == "raise":
        raise ValueError("the engine's own mistake")
    elif how == "exit":
        sys.exit(7)
    elif how == "_exit":
        os._exit(7)
