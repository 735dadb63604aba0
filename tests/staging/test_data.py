"""tensor_data: the bytes of any dense tensor, in logical order."""

from __future__ import annotations

import gc
import hashlib
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from staging import tensor_data  # noqa: E402

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32,
    torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
]  # fmt: skip
if hasattr(torch, "float4_e2m1fn_x2"):
    DTYPES.append(torch.float4_e2m1fn_x2)
SHELL_DTYPES = [getattr(torch, name) for name in ("int4", "uint4") if hasattr(torch, name)]


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel() == 0:
        return tensor
    flat = np.random.default_rng(seed).integers(0, 2, tensor.nbytes, dtype=np.uint8)
    return torch.from_numpy(flat).view(dtype).reshape(shape)


def reference(tensor: torch.Tensor) -> bytes:
    """Element by element, without any of what is tested."""
    size = tensor.element_size()
    raw = bytes(tensor.untyped_storage().tolist())
    parts = []
    for index in np.ndindex(*tensor.shape):
        at = tensor.storage_offset() + sum(
            i * stride for i, stride in zip(index, tensor.stride(), strict=True)
        )
        parts.append(raw[at * size : (at + 1) * size])
    return b"".join(parts)


@pytest.mark.parametrize("dtype", DTYPES + SHELL_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 4), (2, 3, 4), (0, 3)])
def test_the_bytes_of_a_contiguous_tensor(dtype, shape):
    tensor = filled(shape, torch.uint8) if dtype in SHELL_DTYPES else filled(shape, dtype)
    if dtype in SHELL_DTYPES:
        tensor = tensor.view(dtype)
    view = tensor_data(tensor)
    assert view.format == "B"
    assert view.ndim == 1
    assert view.contiguous
    assert view.nbytes == tensor.numel() * tensor.element_size()
    assert bytes(view) == reference(tensor)


VIEWS = {
    "transposed": lambda t: t.t(),
    "sliced": lambda t: t[1:, ::2],
    "expanded": lambda t: t[:1].expand(5, *t.shape[1:]),
    "permuted": lambda t: t.reshape(2, 2, -1).permute(2, 0, 1),
    "offset": lambda t: t[2:],
    "one column": lambda t: t[:, 1],
    "empty slice": lambda t: t[4:],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_the_bytes_of_a_strided_tensor_are_in_logical_order(dtype, view):
    tensor = VIEWS[view](filled((4, 6), dtype))
    assert bytes(tensor_data(tensor)) == reference(tensor)


def test_a_contiguous_tensor_is_not_copied():
    tensor = torch.zeros(8, dtype=torch.uint8)
    view = tensor_data(tensor)
    tensor[3] = 9
    assert view[3] == 9


def test_a_view_outlives_its_tensor():
    tensor = torch.arange(1000)
    expected = tensor.numpy().tobytes()
    storage = weakref.ref(tensor.untyped_storage())
    view = tensor_data(tensor)[8:]
    del tensor
    gc.collect()
    torch.full((1000,), -1)
    assert bytes(view) == expected[8:]
    del storage


def test_a_view_is_read_only():
    view = tensor_data(torch.zeros(4))
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_writable_view_writes_the_tensor():
    tensor = torch.zeros(4, dtype=torch.uint8)
    tensor_data(tensor, writable=True)[2] = 5
    assert tensor.tolist() == [0, 0, 5, 0]


@pytest.mark.parametrize("tensor", [torch.zeros(3, 4).t(), torch.zeros(4)[::2]])
def test_a_writable_view_of_what_would_be_copied_is_an_error(tensor):
    with pytest.raises(ValueError, match="writable=True needs a contiguous host tensor"):
        tensor_data(tensor, writable=True)


def test_the_storage_cannot_be_resized_while_a_view_lives():
    tensor = torch.zeros(4)
    view = tensor_data(tensor)
    with pytest.raises(RuntimeError, match="resiz"):
        tensor.resize_(1 << 20)
    assert view.nbytes == 16


def test_hashes_take_it():
    tensor = torch.arange(10)
    assert (
        hashlib.sha256(tensor_data(tensor)).digest()
        == hashlib.sha256(tensor.numpy().tobytes()).digest()
    )


def test_a_tensor_that_requires_a_gradient_works():
    assert bytes(tensor_data(torch.ones(2, requires_grad=True))) == torch.ones(2).numpy().tobytes()


def test_lazy_conjugate_and_negative_views_are_those_of_the_value():
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    for lazy in (tensor.conj(), tensor.conj().imag, tensor.conj()[::2]):
        assert bytes(tensor_data(lazy)) == lazy.resolve_conj().resolve_neg().numpy().tobytes()


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.arange(4.0), 1.0, 0, torch.quint8)


def test_a_quantized_tensor_is_its_integers():
    assert bytes(tensor_data(quantized())) == bytes(quantized().int_repr().tolist())


def zero_tensor() -> torch.Tensor:
    return torch._efficientzerotensor(3)


@pytest.mark.parametrize(
    ("tensor", "layout"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr"),
        (lambda: torch.zeros(3, device="meta"), "meta"),
        (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "nested"),
        (zero_tensor, "ZeroTensor"),
    ],
    ids=["coo", "csr", "meta", "nested", "zero"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_layout_without_one_flat_image_is_a_type_error_that_names_it(tensor, layout):
    with pytest.raises(TypeError, match=layout):
        tensor_data(tensor())


def test_a_fake_tensor_is_a_type_error():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(3)
    with pytest.raises(TypeError, match="no flat image"):
        tensor_data(fake)


def test_something_else_than_a_tensor_is_a_type_error():
    with pytest.raises(TypeError, match=r"tensor must be a torch\.Tensor, got list"):
        tensor_data([1, 2])


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16, torch.bool], ids=str)
def test_a_device_tensor_is_brought_to_the_host(dtype):
    tensor = filled((64, 3), dtype)
    assert bytes(tensor_data(tensor.to("cuda"))) == reference(tensor)


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.t()], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("nbytes", [0, 8])
def test_a_tensor_whose_storage_was_shrunk_is_refused(view, nbytes):
    tensor = view(torch.arange(100).reshape(10, 10))
    tensor.untyped_storage().resize_(nbytes)
    with pytest.raises(TypeError, match="storage was resized"):
        tensor_data(tensor)
