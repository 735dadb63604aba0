"""scripts/make_venv says in one sentence what is missing, and how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "cat", "mktemp", "rm", "grep")

COMPLETE, OLD, NO_VENV, NO_HEADERS = "3.12 ", "3.9 old", "3.11 venv", "3.13 headers"


class Machine:
    """A PATH with nothing on it but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.venv = folder / "venv"
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        path.chmod(0o755)

    def python(self, name: str, found: str, pip: str = "exit 0") -> None:
        """A Python that answers the probe with ``found``; its environment has a pip like that."""
        python = self.venv / "bin" / "python"
        self.program(
            name,
            f"if [ $1 = -c ]; then echo '{found}'; exit; fi\n"  # the probe
            f"echo made by {name}; PATH={os.environ['PATH']} mkdir -p {python.parent}\n"
            f"echo '{pip}' > {python}; PATH={os.environ['PATH']} chmod +x {python}",
        )

    def make(self, *wanted: str, torch: str = "torch", **environment: str):
        return subprocess.run(
            ["bash", str(ROOT / "scripts" / "make_venv"), str(self.venv), torch, *wanted],
            capture_output=True, text=True, check=False,
            env={"PATH": str(self.bin), **environment},
        )  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.program("c++", "exit 0")
    return machine


MISSING = {
    "no python": ({}, "No python3 is on PATH: install Python 3.10 or newer (Debian: apt-get"),
    "too old": ({"python3": OLD}, "Python 3.9 ({bin}/python3) is too old: install 3.10 or newer"),
    "no venv": ({"python3": NO_VENV}, "has no venv module with pip: install it (Debian: apt-get "
                "install python3.11-venv), or name another Python: make PYTHON="),
    "no headers": ({"python3": NO_HEADERS}, "Python 3.13 ({bin}/python3) has no headers (Python.h)"
                   ": install them (Debian: apt-get install python3.13-dev)"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISSING)
def test_what_is_missing_is_said_in_one_line(machine, case):
    pythons, message = MISSING[case]
    for name, found in pythons.items():
        machine.python(name, found)
    done = machine.make()
    assert done.returncode != 0
    assert message.format(bin=machine.bin) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not machine.venv.exists()


def test_a_python_that_was_named_and_is_not_there(machine):
    machine.python("python3", COMPLETE)
    done = machine.make("python3.99")
    assert done.returncode != 0
    assert done.stderr.startswith("PYTHON=python3.99 is no Python that runs: install it")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "No C++ compiler is on PATH: install gcc 11 or newer (Debian: apt-get install g++)"),
        ("exit 1", "/c++ does not compile C++20: install gcc 11 or newer"),
    ],
)
def test_a_compiler_that_is_missing_or_too_old(machine, script, message):
    machine.python("python3", COMPLETE)
    (machine.bin / "c++").unlink()
    if script:
        machine.program("c++", script)
    done = machine.make()
    assert done.returncode != 0
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_make_of_torch_for_this_python(machine):
    error = "ERROR: No matching distribution found for torch==9.9"
    machine.python("python3", COMPLETE, pip=f"case $* in *torch*) echo {error} >&2; exit 1;; esac")
    done = machine.make(torch="torch==9.9")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith("There is no torch==9.9 for Python 3.12")


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3": "3.11 ", "python3.12": "3.12 ", "python3.10": "3.10 "}, "python3.12"),
        ({"python3": "3.12 ", "python3.12": "3.12 "}, "python3"),
        # Complete before newer, tested before newest.
        ({"python3": "3.13 venv", "python3.10": "3.10 "}, "python3.10"),
        ({"python3": "3.14 ", "python3.11": "3.11 "}, "python3.11"),
        ({"python3": "3.14 "}, "python3"),
    ],
)
def test_the_newest_that_is_complete_is_taken(machine, pythons, taken):
    for name, found in pythons.items():
        machine.python(name, found)
    machine.program("python3.13", "exit 127")  # as a shim of pyenv for what is not chosen
    done = machine.make()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"made by {taken}"
