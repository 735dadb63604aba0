"""The architecture, as rules: who may include whom, where CUDA, torch and Python appear, twins."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

# A layer and those that it may include.
LAYERS: dict[str, set[str]] = {
    "support": set(),
    "runtime": {"support"},
    "stream": {"runtime", "support"},
    "memory": {"stream", "runtime", "support"},
    "ring": {"memory", "stream", "runtime", "support"},
    "kernels": {"runtime", "support"},
    "transfer": {"kernels", "ring", "memory", "stream", "runtime", "support"},
    "hash": {"transfer", "kernels", "ring", "memory", "stream", "runtime", "support"},
}
CORE = set(LAYERS)
LAYERS["torch_ops"] = CORE
LAYERS["bindings"] = CORE | {"torch_ops"}
# The stand-in for CUDA runs the kernels' bodies, and knows nothing else of the core.
LAYERS["sim"] = {"kernels", "runtime", "support"}

SOURCES = sorted(
    path for path in CSRC.rglob("*") if path.suffix in {".h", ".cpp", ".cu", ".cuh", ".inc"}
)
MODULES = sorted(
    path
    for path in (ROOT / "staging").rglob("*.py")
    if path.name not in {"__main__.py"} and "__pycache__" not in path.parts
)

# C++ files that are tested through something else, and why.
TESTED_ELSEWHERE = {
    "runtime/cuda_runtime": "over the simulated device, by everything above it",
    "runtime/no_cuda_runtime": "a null pointer",
}


def layer_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def code_of(path: Path) -> str:
    """The text without comments and string literals."""
    text = path.read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_source_is_in_a_known_layer():
    assert {layer_of(path) for path in SOURCES} <= set(LAYERS)


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_a_layer_includes_only_those_below_it(layer: str):
    for path in SOURCES:
        if layer_of(path) != layer:
            continue
        for include in re.findall(r'#include "([^"]+)"', path.read_text()):
            top = include.split("/")[0]
            if top in LAYERS and top != layer:
                assert top in LAYERS[layer], f"{relative(path)} includes {include}"


def test_cuda_is_called_in_one_file_and_by_the_stand_in():
    # The runtime's functions are cuda followed by a capital letter; types and codes end in
    # _t, or are followed by something else than a call.
    call = re.compile(r"\b(cuda[A-Z]\w*)\s*\(")
    for path in SOURCES:
        if layer_of(path) == "sim" or path.name == "cuda_runtime.cpp":
            continue
        assert not call.findall(code_of(path)), relative(path)


def test_torch_appears_only_in_bindings_and_operators():
    torch = re.compile(r"#include <(torch|ATen|c10)/")
    for path in SOURCES:
        if layer_of(path) not in {"bindings", "torch_ops"}:
            assert not torch.search(path.read_text()), relative(path)


def test_python_appears_only_in_bindings():
    python = re.compile(r"#include <(pybind11/|Python\.h|torch/csrc/autograd/python)")
    for path in SOURCES:
        if layer_of(path) != "bindings":
            assert not python.search(path.read_text()), relative(path)


def test_every_header_opens_with_what_it_is_for():
    for path in SOURCES:
        if path.suffix in {".h", ".cuh"}:
            text = path.read_text()
            assert text.startswith("//"), f"{relative(path)} has no opening comment"
            assert "#pragma once" in text, relative(path)


def test_every_core_source_has_a_cpp_test():
    missing = []
    for path in SOURCES:
        if layer_of(path) not in CORE or path.suffix != ".cpp":
            continue
        name = path.relative_to(CSRC).with_suffix("")
        twin = ROOT / "tests" / "csrc" / name.parent / f"{name.name}_test.cpp"
        if not twin.exists() and str(name) not in TESTED_ELSEWHERE:
            missing.append(str(name))
    assert not missing


def test_every_cpp_test_has_a_source():
    for path in (ROOT / "tests" / "csrc").rglob("*_test.cpp"):
        name = path.relative_to(ROOT / "tests" / "csrc")
        if name.parts[0] == "sim":  # named after what CUDA promises
            continue
        source = name.parent / name.name.removesuffix("_test.cpp")
        here = [
            (base / source).with_suffix(suffix)
            for base in (CSRC, ROOT / "tests" / "csrc")
            for suffix in (".cpp", ".h", ".cuh")
        ]
        assert any(candidate.exists() for candidate in here), relative(path)


def test_every_module_has_a_python_test():
    missing = []
    for path in MODULES:
        name = path.relative_to(ROOT / "staging")
        if name.name == "__init__.py" and len(ast.parse(path.read_text()).body) <= 1:
            continue  # a docstring, or nothing
        stem = "init" if name.name == "__init__.py" else name.stem.lstrip("_")
        twin = ROOT / "tests" / "staging" / name.parent / f"test_{stem}.py"
        if not twin.exists():
            missing.append(str(name))
    assert not missing


def test_every_benchmark_has_a_source():
    for path in (ROOT / "benchmarks").rglob("bench_*.py"):
        name = path.relative_to(ROOT / "benchmarks")
        source = ROOT / name.parent / name.name.removeprefix("bench_")
        # A benchmark of a whole package is named after what it runs.
        assert source.exists() or source.parent.is_dir(), relative(path)


def test_the_process_utilities_import_nothing_of_the_rest():
    pattern = re.compile(r"^\s*(?:from|import)\s+(torch|numpy|staging)\b([.\w]*)", re.MULTILINE)
    for path in (ROOT / "staging" / "process").rglob("*.py"):
        for top, rest in pattern.findall(path.read_text()):
            assert top == "staging", f"{relative(path)} imports {top}"
            assert rest.startswith(".process") or rest == "", (
                f"{relative(path)} imports staging{rest}"
            )


def test_the_only_list_of_sources_is_cmakes():
    listed = "".join(
        path.read_text() for path in [ROOT / "CMakeLists.txt", *CSRC.rglob("CMakeLists.txt")]
    )
    for path in SOURCES:
        if path.suffix in {".cpp", ".cu"}:
            assert path.name in listed, f"{relative(path)} is in no CMakeLists.txt"


def test_nothing_of_a_machine_is_in_the_repository():
    home = re.compile(r"/(?:root|home/\w+)/")
    for path in [*SOURCES, *MODULES]:
        assert not home.search(path.read_text()), relative(path)
