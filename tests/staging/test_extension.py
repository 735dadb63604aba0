"""The extension module and its stubs say the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import staging  # noqa: E402
from staging.extension import _C  # noqa: E402

STUB = Path(staging.__file__).with_name("_C.pyi")


def stub_names() -> dict[str, set[str]]:
    """Names of the stub, and those of each class in it."""
    names: dict[str, set[str]] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = {
                child.name for child in node.body if isinstance(child, ast.FunctionDef)
            }
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = set()
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = set()
    return names


def test_every_name_of_the_module_is_in_the_stub_and_back():
    public = {name for name in dir(_C) if not name.startswith("_")}
    assert public == {name for name in stub_names() if not name.startswith("_")}


def test_every_method_is_in_the_stub():
    for name, methods in stub_names().items():
        if name.startswith("_"):
            continue  # a type of the stub's own
        value = getattr(_C, name)
        if isinstance(value, type) and not issubclass(value, BaseException):
            own = {
                key
                for key in vars(value)
                if not key.startswith("__") and key != "_pybind11_conduit_v1_"
            }
            assert own <= methods, name
            assert {key for key in methods if not key.startswith("__")} <= set(dir(value)), name


def test_a_cuda_torch_has_a_cuda_extension():
    assert _C.built_with_cuda == (torch.version.cuda is not None)
