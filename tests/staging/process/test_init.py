"""The package loads nothing that it does not need, and exports what it says."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import staging.process

SOURCE = pathlib.Path(staging.process.__file__)


def test_importing_it_loads_neither_torch_nor_numpy_nor_the_extension():
    code = (
        "import sys, staging.process; "
        "heavy = {'torch', 'numpy', 'zmq', 'uvicorn', 'staging._C', 'ray'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=SOURCE.parents[2], check=True, timeout=60)


def test_what_starts_and_watches_processes_loads_neither_torch_nor_numpy():
    code = (
        "import sys; "
        "from staging.process import APIServerProcessManager, EngineProcessManager, "
        "RustFrontendProcessManager, ZmqListener, shutdown, wait_for_completion_or_failure; "
        "heavy = {'torch', 'numpy', 'zmq', 'uvicorn', 'staging._C', 'ray'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=SOURCE.parents[2], check=True, timeout=60)


def test_importing_it_starts_neither_thread_nor_process():
    code = (
        "import os, threading; import staging.process.api_servers, staging.process.frontend, "
        "staging.process.engines, staging.process.wait; "
        "assert threading.active_count() == 1; "
        "assert open(f'/proc/self/task/{os.getpid()}/children').read() == ''"
    )
    subprocess.run([sys.executable, "-c", code], cwd=SOURCE.parents[2], check=True, timeout=60)


def test_type_checkers_are_told_the_same_exports():
    told = dict(
        re.findall(r"^    from (\S+) import (?:\(\n\s+)?\w+ as (\w+)", SOURCE.read_text(), re.M)
    )
    imports = re.findall(
        r"from (staging\.process\.\w+) import (?:\(\s*)?(\w+) as (\w+)", SOURCE.read_text()
    )
    assert told
    assert {(module, name) for module, name, _ in imports} == {
        (module, name) for name, module in staging.process._EXPORTS.items()
    }
    assert staging.process.__all__ == sorted(staging.process._EXPORTS)


def test_no_export_is_hidden_by_a_module_of_its_name():
    modules = {module.name for module in pkgutil.iter_modules([str(SOURCE.parent)])}
    assert not modules & set(staging.process._EXPORTS)


@pytest.mark.parametrize("name", sorted(set(staging.process._EXPORTS) - {"RayEngineManager"}))
def test_every_export_is_there(name):
    module = importlib.import_module(staging.process._EXPORTS[name])
    assert getattr(staging.process, name) is getattr(module, name)
    assert name in dir(staging.process)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = staging.process.no_such_name
