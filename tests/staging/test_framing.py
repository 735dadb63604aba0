"""The encodings of values, against docs/digest-framing.md and a second implementation."""

from __future__ import annotations

import enum
import random
import re
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xxhash")

import reference_framing  # noqa: E402

from staging.digest import digest_async, tensor_digest, tensor_digests  # noqa: E402
from staging.extension import _C  # noqa: E402
from staging.framing import (  # noqa: E402
    MAGIC,
    MAX_DEPTH,
    Content,
    dtype_name,
    frame,
    tensor_header,
)
from staging.hasher import TensorHasher, content_key  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = (ROOT / "docs" / "digest-framing.md").read_text()
VECTORS = re.findall(
    r"^\| `(.+?)` \| `([0-9a-f]{64})` \| `([0-9a-f]{64})` \| `([0-9a-f]{32})` \|$",
    SPECIFICATION,
    re.MULTILINE,
)


def written(*values: object) -> bytes:
    """The frame, with a mark where a content's digest stands."""
    return b"".join(
        b"<content>" if isinstance(piece, Content) else bytes(piece) for piece in frame(values)
    )


def test_the_specification_has_vectors_of_every_kind():
    assert len(VECTORS) > 40
    assert MAGIC.hex() in SPECIFICATION


@pytest.mark.parametrize("vector", VECTORS, ids=[vector[0] for vector in VECTORS])
def test_the_vectors_of_the_specification(vector):
    expression, *digests = vector
    value = eval(expression, {"torch": torch})
    for algorithm, digest in zip(("blake3", "sha256", "xxh3_128"), digests, strict=True):
        assert reference_framing.digest(algorithm, value).hex() == digest
        assert TensorHasher(algorithm).update(value).hexdigest() == digest


def random_value(rng: random.Random, depth: int) -> object:
    kind = rng.randrange(11 if depth < 4 else 8)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([1, -1]) * rng.getrandbits(rng.choice([1, 8, 63, 64, 200]))
    if kind == 2:
        return rng.choice([0.0, -0.0, rng.gauss(0, 1e300), float("inf"), float("nan")])
    if kind == 3:
        return "".join(chr(rng.choice([65, 233, 0x20AC, 0x1F600, 0xD800])) for _ in range(3))
    if kind == 4:
        return rng.randbytes(rng.randrange(40))
    if kind in {5, 6}:
        shape = tuple(rng.randrange(4) for _ in range(rng.randrange(4)))
        dtype = rng.choice([torch.float32, torch.int64, torch.bool, torch.uint8])
        tensor = torch.randint(0, 2, shape).to(dtype)
        return tensor.t() if tensor.dim() == 2 else tensor
    if kind == 7:
        return ()
    items = [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return items
    if kind == 9:
        return tuple(items)
    return {rng.choice(["k", 1, 2, b"k", (3, "x"), None, 1.5]): item for item in items}


def test_random_values_agree_with_the_second_implementation(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(1500):
        values = [random_value(rng, 0) for _ in range(rng.randrange(3))]
        algorithm = rng.choice(["blake3", "sha256", "xxh3_128"])
        digest = TensorHasher(algorithm).update(*values).digest()
        assert digest == reference_framing.digest(algorithm, *values), values


def test_the_two_ways_to_write_plain_values_agree(seed, monkeypatch):
    rng = random.Random(seed)
    values = [[random_value(rng, 0) for _ in range(3)] for _ in range(1000)]
    edges = [k * 2**n + d for k in (1, -1) for n in (7, 8, 15, 16, 31, 62, 63) for d in (-1, 0, 1)]
    values += [edges, [2**64], [float("nan"), -0.0], ["\ud800"], [b"x" * 5000], [{2: 1, "a": 2}]]
    quick = [written(value) for value in values]
    assert any(_C.frame_plain(value, 10) is not None for value in values)
    monkeypatch.setattr(_C, "frame_plain", lambda value, depth: None)
    assert [written(value) for value in values] == quick


def test_the_deepest_nesting_is_the_same_for_both_ways(monkeypatch):
    deepest: list[object] = []
    for _ in range(MAX_DEPTH):
        deepest = [deepest]
    quick = written(deepest)
    with pytest.raises(ValueError, match="nested more than 200 deep"):
        frame([[deepest]])
    monkeypatch.setattr(_C, "frame_plain", lambda value, depth: None)
    assert written(deepest) == quick
    with pytest.raises(ValueError, match="nested more than 200 deep"):
        frame([[deepest]])


def test_values_that_differ_have_frames_that_differ():
    values = [
        None, False, True, 0, 1, -1, 255, 256, 0.0, -0.0, 1.0, float("nan"), "", "N", "1", b"",
        b"1", [], (), {}, [[]], [()], [None], (None,), [1, 2], [12], ["ab", "c"], ["a", "bc"],
        [["a"], "b"], [["a", "b"]], {"a": 1}, {"a": "1"}, {1: "a"}, {"a": {"b": 1}}, "a\x00",
        [1, [2, 3]], [1, 2, 3], [[1, 2], 3],
    ]  # fmt: skip
    frames = [written(value) for value in values]
    assert len(set(frames)) == len(frames)
    # No frame is the beginning of another, so values side by side cannot be confused either.
    for a in frames:
        assert not any(b != a and b.startswith(a) for b in frames)


def test_the_order_of_a_dict_does_not_count():
    assert written({"a": 1, "b": 2, 3: 4}) == written({3: 4, "b": 2, "a": 1})


def test_every_nan_is_one():
    nans = [float("nan"), -float("nan"), float("inf") - float("inf"), np.nan]
    assert len({written(float(nan)) for nan in nans}) == 1


def test_subclasses_count_as_what_they_are():
    class Number(enum.IntEnum):
        TWO = 2

    pair = namedtuple("pair", "a b")
    assert written(Number.TWO) == written(2)
    assert written(pair(1, 2)) == written((1, 2))
    assert written(OrderedDict(a=1)) == written({"a": 1})
    assert written(torch.nn.Parameter(torch.ones(2))) == written(torch.ones(2))


def test_buffers_count_as_their_bytes():
    data = bytes(range(24))
    view = memoryview(np.frombuffer(data, np.uint8).reshape(4, 6))
    assert written(bytearray(data)) == written(data)
    assert written(view) == written(data)
    assert written(memoryview(data)[::2]) == written(data[::2])
    assert written(memoryview(b"")) == written(b"")
    assert written(memoryview(np.zeros((0, 3)))) == written(b"")


def test_large_buffers_are_not_copied():
    data = bytearray(1000)
    pieces = frame([[1, data, "x"]])
    data[0] = 7
    assert any(isinstance(piece, memoryview) and piece[0] == 7 for piece in pieces)


def test_arrays_count_as_tensors():
    for dtype in ("bool", "uint8", "int16", "uint32", "float16", "float64", "complex64"):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        tensor = torch.from_numpy(array)
        assert written(array) == written(tensor), dtype
        key = TensorHasher().update(tensor).digest()
        assert TensorHasher().update(array).digest() == key
        assert TensorHasher().update(np.asfortranarray(array)).digest() == key
        assert TensorHasher().update(array.astype(array.dtype.newbyteorder(">"))).digest() == key
    assert written(np.float32(1.5)) == written(torch.tensor(1.5))
    assert written(np.zeros((0, 2))) == written(torch.zeros(0, 2, dtype=torch.float64))


def test_arrays_of_ml_dtypes_count_as_tensors():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.0, 2.0], dtype=ml_dtypes.bfloat16)
    tensor = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    assert TensorHasher().update(array).digest() == TensorHasher().update(tensor).digest()


def of_integers(scale=1.0, zero_point=0, dtype=torch.quint8, axis=None):
    """The integers 0..3 in a square; per channel along ``axis``."""
    integers = torch.arange(4).reshape(2, 2)
    if axis is None:
        return torch._make_per_tensor_quantized_tensor(
            integers.to({torch.quint8: torch.uint8, torch.qint8: torch.int8}[dtype]),
            scale,
            zero_point,
        )
    return torch._make_per_channel_quantized_tensor(
        integers.to(torch.uint8), torch.tensor(scale), torch.tensor(zero_point), axis
    )


ALL_OF_ONE_IMAGE = [
    of_integers(),
    of_integers(scale=2.0),
    of_integers(zero_point=1),
    of_integers(dtype=torch.qint8),
    of_integers([1.0, 1.0], [0, 0], axis=0),
    of_integers([1.0, 1.0], [0, 0], axis=1),
    of_integers([1.0, 2.0], [0, 0], axis=0),
    of_integers([1.0, 1.0], [0, 1], axis=0),
    of_integers([1.0, 1.0], [0.0, 0.0], axis=0),  # float zero points
    torch.arange(4, dtype=torch.uint8).reshape(2, 2),
    torch.arange(4, dtype=torch.int8).reshape(2, 2),
]


DIGESTS = {
    "tensor_digest": tensor_digest,
    "tensor_digests": lambda t, algorithm: tensor_digests([t], algorithm)[0],
    "digest_async": lambda t, algorithm: digest_async(t, algorithm).result(),
    "TensorHasher": lambda t, algorithm: TensorHasher(algorithm).update(t).digest(),
    "content_key": lambda t, algorithm: bytes.fromhex(content_key(t, algorithm=algorithm)),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("digest", DIGESTS.values(), ids=DIGESTS)
@pytest.mark.parametrize("algorithm", ["blake3", "sha256", "xxh3_128"])
def test_quantized_tensors_bind_their_parameters(digest, algorithm, device):
    digests = [digest(tensor.to(device), algorithm) for tensor in ALL_OF_ONE_IMAGE]
    assert len(set(digests)) == len(ALL_OF_ONE_IMAGE)
    assert digests == [reference_framing.digest(algorithm, t) for t in ALL_OF_ONE_IMAGE]
    # Unframed they are the integers' and nothing else.
    raw = {tensor_digest(t.to(device), algorithm, framed=False) for t in ALL_OF_ONE_IMAGE}
    assert raw == {reference_framing.HASHES[algorithm](bytes(range(4)))}


def masked_tensor():
    from torch.masked import masked_tensor

    return masked_tensor(torch.arange(3.0), torch.tensor([True, False, True]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (masked_tensor, "MaskedTensor"),
        (lambda: np.ma.array([1, 2], mask=[0, 1]), "value is a masked array"),
        (lambda: np.ma.masked, "value is a masked array"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), "nested"),
        (lambda: torch.eye(2).to_sparse(), "layout"),
        (lambda: torch.empty(2, dtype=torch.qint8), "torch.qint8 without scale and zero point"),
        (
            lambda: torch.quantize_per_channel(
                torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.quint4x2
            ),
            "torch.quint4x2 share a byte",
        ),
    ],
    ids=["masked", "masked array", "masked constant", "nested", "sparse", "no scale", "packed"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_has_values_beside_its_bytes_is_refused(make, words):
    value = make()
    with pytest.raises(TypeError, match=words):
        TensorHasher().update(value)
    with pytest.raises(TypeError, match=words):
        content_key(value)
    if isinstance(value, torch.Tensor):
        for function in (tensor_digest, digest_async):
            with pytest.raises(TypeError, match=words):
                function(value)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), r"value is of type object"),
        ([1, {"a": (2, object())}], r"value\[1\]\['a'\]\[1\] is of type object"),
        ({"a": {1, 2}}, r"value\['a'\] is of type set"),
        (1j, r"value is of type complex"),
        (np.array(["a"]), r"value is a NumPy value of dtype <U1"),
        ([np.array([None])], r"value\[0\] is a NumPy value of dtype object"),
        (np.array("2020", dtype="M8[D]"), r"NumPy value of dtype datetime64"),
        (np.zeros(2, dtype=[("x", "i4")]), r"NumPy value of dtype"),
        ({torch.ones(1): 1}, r"value \(key tensor\(\[1.\]\)\) is or contains a tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_what_has_no_encoding_is_refused_by_place(value, where):
    with pytest.raises(TypeError, match=where):
        frame([value])


def test_a_cycle_is_refused():
    cycle: list[object] = []
    cycle.append({"again": cycle})
    with pytest.raises(ValueError, match="nested more than 200 deep, or contains itself"):
        frame([cycle])


def test_the_header_of_a_tensor():
    assert tensor_header("int8", (2, 3)) == (
        b"x" + (4).to_bytes(8, "little") + b"int8" + b"".join(
            n.to_bytes(8, "little") for n in (2, 2, 3)
        )
    )  # fmt: skip
    assert tensor_header("int8", (), quantized=True).startswith(b"q")


def test_the_name_of_a_dtype_has_no_module_and_no_alias():
    assert dtype_name(torch.float) == "float32"
    assert dtype_name(torch.half) == "float16"
    assert dtype_name(torch.float8_e4m3fn) == "float8_e4m3fn"
