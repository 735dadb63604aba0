"""The package as `make` installs it, or as a wheel, used from another folder than the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if os.environ.get("CI") != "true" and run(tmp_path, "-c", "import staging").returncode != 0:
        pytest.skip("the package is not installed here: make build")
    return tmp_path


def test_a_script_of_the_users_and_the_commands_run_from_any_folder(folder):
    (folder / "script.py").write_text("import staging\nprint(staging.__version__)\n")
    script = run(folder, "script.py")
    command = run(folder, "-m", "staging", "--version")
    assert (script.returncode, command.returncode) == (0, 0), script.stderr + command.stderr
    assert command.stdout == f"staging {script.stdout}"


def test_what_is_no_module_is_installed_too(folder):
    code = (
        "from importlib.resources import files as f; print(*sorted(p.name for p in %s.iterdir()))"
    )
    texts = run(folder, "-c", code % "(f('staging.demo') / 'texts')")
    assert len([name for name in texts.stdout.split() if name.endswith(".txt")]) == 4
    package = run(folder, "-c", code % "f('staging')").stdout.split()
    assert {"py.typed", "_C.pyi"} <= set(package)
    assert any(name.startswith("_C.") and name.endswith(".so") for name in package)
