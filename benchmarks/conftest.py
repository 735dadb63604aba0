"""Shows each comparison at the end of the run, and stores them for machines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import Comparison

_shown: list[Comparison] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compare-json", metavar="FILE", help="write the comparisons as JSON")


@pytest.fixture(scope="session")
def where() -> str:
    """Name the device and what kind of figures it gives."""
    import torch

    from staging import sim

    if sim.active():
        return "Simulated device: host times, not device times"
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}: host times"
    return "CPU"


@pytest.fixture
def show():
    """Hand a Comparison to the summary."""
    return _shown.append


def pytest_terminal_summary(terminalreporter, config) -> None:
    for comparison in _shown:
        terminalreporter.write_line("")
        for line in comparison.lines():
            terminalreporter.write_line(line)
    target = config.getoption("--compare-json")
    if target and _shown:
        rows = [
            {
                "title": comparison.title,
                "medians_us": comparison.medians_us,
                "ratios": {name: comparison.ratio(name) for name in comparison.medians_us},
            }
            for comparison in _shown
        ]
        Path(target).write_text(json.dumps(rows, indent=1) + "\n")
