"""Importing the package loads nothing, and every public name is found."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import staging


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.strip()


@pytest.mark.parametrize("module", ["staging", "staging.process", "staging.sim", "staging.cli"])
def test_importing_loads_neither_torch_nor_numpy_nor_the_extension(module):
    code = (
        f"import sys, {module}\n"
        "print([name for name in ('torch', 'numpy', 'staging._C') if name in sys.modules])"
    )
    assert run(code) == "[]"


def test_importing_starts_no_thread_and_no_process():
    code = (
        "import os, staging, staging.process\n"
        "print(len(os.listdir('/proc/self/task')), "
        "len(open('/proc/self/task/%d/children' % os.getpid()).read().split()))"
    )
    assert run(code) == "1 0"


def test_every_public_name_is_found_in_its_module():
    pytest.importorskip("torch")
    for name in staging.__all__:
        assert getattr(staging, name) is not None
    assert set(staging.__all__) <= set(dir(staging))


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(staging.__file__).read_text())
    imported = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 0
        for alias in node.names
        if alias.asname
    }
    assert imported == staging._EXPORTS


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = staging.no_such_name


def test_the_backend_is_not_chosen_at_import():
    pytest.importorskip("torch")
    code = "import staging; from staging.extension import _C; print(_C.runtime_chosen())"
    assert run(code) == "False"
