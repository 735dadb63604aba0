"""Arguments are converted once, and refused by name in Python's own words."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import staging


class Changing:
    """An index that answers 1, and 100000 from then on."""

    def __init__(self) -> None:
        self.asked = 0

    def __index__(self) -> int:
        self.asked += 1
        return 1 if self.asked == 1 else 100_000


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture
def n():
    return Changing()


@pytest.fixture
def buffer(device):
    return staging.CpuGpuBuffer(8, 2, dtype=torch.int32, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["copy_to_gpu", "copy_to_cpu"])
def test_a_number_of_rows_is_read_once_by_a_copy(buffer, n, method):
    assert getattr(buffer, method)(n).shape == (1, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_a_number_of_rows_is_read_once_by_a_fetch(buffer, n):
    assert buffer.fetch(n).result().shape == (1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("change", ["set_", "data", "resize_"])
def test_arrays_that_were_given_other_memory_are_not_followed_there(device, change):
    """Copies go where the arrays were made; a view beyond a tensor's memory is refused."""
    buffer = staging.CpuGpuBuffer(8, 2, dtype=torch.int32, device=device, with_numpy=False)
    gpu = buffer.gpu.view(8, 2)
    for tensor in (buffer.cpu, buffer.gpu):
        if change == "set_":
            tensor.set_(torch.empty(0, 2, dtype=torch.int32, device=tensor.device))
        elif change == "data":
            tensor.data = torch.empty(0, 2, dtype=torch.int32, device=tensor.device)
        else:
            tensor.resize_(2, 2)
    for method in (buffer.copy_to_gpu, buffer.copy_to_cpu):
        method()
        with pytest.raises(RuntimeError, match="resized, or given other memory"):
            method(4)
    with buffer.fill() as rows:
        rows[:] = 7
    assert buffer.fetch(4).result().tolist() == [[7, 7]] * 4
    assert buffer.fetch().result().shape == (8, 2)
    assert gpu.cpu().tolist() == [[7, 7]] * 8


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("with_numpy", [True, False])
def test_a_number_of_rows_is_read_once_by_a_fill(device, n, with_numpy):
    buffer = staging.CpuGpuBuffer(8, 2, dtype=torch.int32, device=device, with_numpy=with_numpy)
    with buffer.fill(n) as view:
        assert tuple(view.shape) == (1, 2)
        view[:] = 3
    assert buffer.gpu.cpu().sum() == 6


@pytest.mark.parametrize("device", DEVICES)
def test_a_number_of_rows_is_read_once_by_a_group(device, n):
    group = staging.StagingGroup(device, {"a": (8, torch.int32)})
    group["a"].np[:] = 1
    group.copy_to_gpu({"a": n})
    assert group["a"].gpu.cpu().sum() == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_length_is_read_once_by_slice_copies(device):
    source, target = torch.ones(8), torch.zeros(8, device=device)
    assert staging.copy_slice(source, target, Changing(), snapshot=True).shape == (1,)
    staging.copy_slices([(source, target, Changing())], snapshot=True)
    assert target.cpu().sum() == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_size_is_read_once(device, n):
    assert staging.CpuGpuBuffer(n, dtype=torch.int32, device=device).gpu.shape == (1,)
    assert staging.StagedRows(Changing(), 2, torch.int32, device).gpu.shape == (1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", [np.ones(2, np.int32), torch.ones(2, dtype=torch.int32), [1, 1]])
def test_a_place_that_changes_is_out_of_bounds_or_what_it_was(device, values):
    table = staging.StagedRows(8, 2, torch.int32, device)
    try:
        table.stage(Changing(), 0, values)
    except ValueError:
        return
    assert table.apply()[1].cpu().sum() == 2


def test_a_list_that_grows_while_it_is_framed_counts_as_it_was():
    class Growing(list):
        def __iter__(self):
            self.append(1)
            return super().__iter__()

    assert staging.content_key(Growing([1])) == staging.content_key([1, 1])


@pytest.mark.parametrize("bad", [2.5, "3", [1], object()])
@pytest.mark.parametrize("method", ["copy_to_gpu", "copy_to_cpu", "fetch", "refill"])
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_no_number_of_rows_is_refused_by_name(buffer, method, bad):
    with pytest.raises(TypeError, match="n must be an int, got "):
        getattr(buffer, method)(bad)


@pytest.mark.parametrize("bad", [-1, 9, 2**70, -(2**70)])
@pytest.mark.parametrize("device", DEVICES)
def test_a_number_of_rows_out_of_range_is_refused_with_the_range(buffer, bad):
    with pytest.raises(
        ValueError, match=re.escape(f"n must be in 0..8 (the buffer's rows), got {bad}")
    ):
        buffer.copy_to_gpu(bad)


def test_an_exception_of_an_index_passes_through():
    class Raising:
        def __index__(self):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        staging.CpuGpuBuffer(8, dtype=torch.int32, device="cpu").copy_to_gpu(Raising())


@pytest.mark.parametrize(
    ("size", "error"),
    [
        ((-1,), ValueError),
        ((2**62, 4), ValueError),
        ((2**70,), ValueError),
        (("3",), TypeError),
        ((2.5,), TypeError),
    ],
)
def test_a_shape_that_cannot_be_is_refused_by_name(size, error):
    with pytest.raises(error, match=r"size must (be|fit)"):
        staging.CpuGpuBuffer(*size, dtype=torch.int32, device="cpu")


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("mps", ValueError),
        ("nonsense", ValueError),
        (None, TypeError),
        (2.5, TypeError),
        (2**70, ValueError),
        (-1, ValueError),
        ("cuda:97", ValueError),
    ],
)
def test_a_device_that_cannot_be_is_refused_by_name(device, error):
    with pytest.raises(error, match="device must be "):
        staging.CpuGpuBuffer(8, dtype=torch.int32, device=device)


# ---- every public callable -----------------------------------------------------------------

# What names C++, or is PyTorch's raw text.
RAW = re.compile(
    r"Unable to cast|incompatible function arguments|std::|c10::|at::|TORCH_CHECK|"
    r"Exception raised from|pybind|C\+\+"
)


def examples():
    """Valid arguments by their name; a new name is registered here."""
    host = torch.ones(4, dtype=torch.int32)
    return {
        "algorithm": "blake3",
        "cols": 2,
        "device": "cpu",
        "dtype": torch.int32,
        "enabled": False,
        "framed": True,
        "from_tensor": host,
        "keep_tails": True,
        "length": 1,
        "members": {"a": (4, torch.int32)},
        "n": 1,
        "name": "",
        "nbytes": 1 << 30,
        "numa_node": None,
        "pin_memory": None,
        "prefixes": None,
        "reuse": "snapshot",
        "row": 0,
        "rows": 2,
        "size": 4,
        "slices": [],
        "slots": 1,
        "snapshot": False,
        "start": 0,
        "stream": None,
        "tables": [],
        "tensor": host,
        "tensors": [host],
        "timeout": 1.0,
        "to_tensor": host.clone(),
        "values": [1],
        "with_numpy": True,
        "writable": False,
    }


def instances():
    """Objects whose methods are called, by class; a new class that has no examples is here."""
    host = torch.ones(4, dtype=torch.int32)
    group = staging.StagingGroup("cpu", {"a": (4, torch.int32)})
    buffer = staging.CpuGpuBuffer(4, dtype=torch.int32, device="cpu")
    return {
        "CpuGpuBuffer": buffer,
        "StagingGroup": group,
        "GroupBuffer": group["a"],
        "StagedRows": staging.StagedRows(2, 2, torch.int32, "cpu"),
        "Fetch": buffer.fetch(),
        "DigestHandle": staging.digest_async(host),
        "TensorHasher": staging.TensorHasher(),
    }


# Made by the package itself, or for one argument that means nothing here: name -> why.
MADE_INSIDE = {"GroupBuffer", "Fetch", "DigestHandle"}
# Where another value than that of examples() is valid.
EXAMPLES_OF = {name: {"device": None} for name in ("pin", "pinned_empty", "pinned_zeros")}
EXAMPLES_OF["uva_view"] = {"device": "cuda"}
EXAMPLES_OF["nvtx_ranges"] = {"enabled": True}  # an error of its own where the build has no NVTX
# Any object is an argument of these.
ANY_VALUE = {
    ("TensorHasher.update", "values"),
    ("content_key", "values"),
    ("DigestHandle.map", "function"),
}


def parameters(function):
    try:
        found = inspect.signature(function).parameters.values()
        return [(p.name, p.kind, p.default is not p.empty) for p in found if p.name != "self"]
    except ValueError:  # of the extension: in the first line of its documentation
        text = re.match(r"\w+\((.*)\) -> ", function.__doc__ or "")
        result, kind = [], inspect.Parameter.POSITIONAL_OR_KEYWORD
        for part in text[1].split(", ") if text else []:
            if part == "*":
                kind = inspect.Parameter.KEYWORD_ONLY
            elif not part.startswith("self:"):
                result.append((part.split(":")[0], kind, "=" in part))
        return result


def public_callables():
    """Yield (name, callable) for functions, constructors and methods that the package exports."""
    made = instances()
    for name in staging.__all__:
        exported = getattr(staging, name)
        if not callable(exported):
            continue
        if not inspect.isclass(exported):
            yield name, exported
            continue
        if issubclass(exported, BaseException) or hasattr(exported, "__dataclass_fields__"):
            continue
        if name not in MADE_INSIDE:
            yield name, exported
        for attribute in dir(exported):
            if attribute.startswith("_") or isinstance(getattr(exported, attribute), property):
                continue
            if name in made and callable(getattr(exported, attribute)):
                yield f"{name}.{attribute}", getattr(made[name], attribute)


def odd_values():
    class Raising:
        def __index__(self):
            raise TypeError("mine: an argument of the test")

    return {
        "None": None, "True": True, "-1": -1, "2**70": 2**70, "2.5": 2.5, "nan": float("nan"),
        "'3'": "3", "b''": b"", "[1]": [1], "()": (), "{}": {}, "object": object(),
        "changing": Changing(), "raising": Raising(), "dtype": torch.float32,
        "device": torch.device("cpu"), "meta": torch.ones(2, device="meta"),
        "sparse": torch.ones(2, 2).to_sparse(), "array": np.ones(2), "0-d": torch.tensor(1),
        "generator": (i for i in range(2)), "huge shape": (2**40, 2**40), "surrogate": "\ud800",
        "type": int, "set": {1},
    }  # fmt: skip


def complaint(error, name):
    """Return what is wrong with the error of a bad argument, or None."""
    text = str(error)
    if isinstance(error, MemoryError):
        return None  # a documented answer to a huge size
    if not isinstance(error, (TypeError, ValueError, OverflowError)):
        return f"{type(error).__name__}: {text[:200]}"
    if RAW.search(text):
        return f"names C++: {text[:200]}"
    words = {name, name.rstrip("s"), "value", "mine"}
    return None if any(word in text for word in words) else f"does not name {name}: {text[:200]}"


def sweep():
    for name, function in public_callables():
        given = parameters(function)
        known = {**examples(), **EXAMPLES_OF.get(name, {})}
        missing = [p for p, kind, default in given if p not in known and (name, p) not in ANY_VALUE]
        if missing:
            print(
                json.dumps([name, f"register an example for {missing} in examples()"]), flush=True
            )
            continue
        for parameter, _, _ in given:
            if (name, parameter) in ANY_VALUE:
                continue
            plain = None  # what valid arguments give here: no device, nothing captured
            for label, value in {"valid": known.get(parameter), **odd_values()}.items():
                call = f"{name}({parameter}={label})"
                print(json.dumps([call]), flush=True)
                args, kwargs = [], {}
                for p, kind, default in given:
                    chosen = value if p == parameter else known.get(p)
                    if kind is inspect.Parameter.VAR_POSITIONAL:
                        args.append(chosen)
                    elif kind is inspect.Parameter.KEYWORD_ONLY or (args and default):
                        kwargs[p] = chosen
                    elif kind is not inspect.Parameter.VAR_KEYWORD:
                        args.append(chosen)
                try:
                    function(*args, **kwargs)
                except Exception as error:
                    plain = str(error) if label == "valid" else plain
                    problem = None if str(error) == plain else complaint(error, parameter)
                    if problem:
                        print(json.dumps([call, problem]), flush=True)


def test_every_bad_argument_is_refused_in_words_of_its_own():
    here = Path(__file__).resolve().parent
    done = subprocess.run(
        [sys.executable, "-c", "import test_arguments; test_arguments.sweep()"],
        env={**os.environ, "PYTHONPATH": f"{here}:{here.parent.parent}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"crashed in {lines[-1:]}: {done.stderr[-2000:]}"
    assert len(lines) > 1000
    assert [line for line in lines if len(line) > 1] == []
