"""Every dtype of PyTorch, through every function: the right bytes, or a refusal by name."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import staging  # noqa: E402
from staging.arguments import QUANTIZED  # noqa: E402

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)
PLAIN = [dtype for dtype in DTYPES if dtype not in QUANTIZED]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]

of_any_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=str)
on_each_device = pytest.mark.parametrize("device", DEVICES)

# What NumPy has a dtype for, with ml_dtypes.
WITH_NUMPY = {
    "bcomplex32", "bfloat16", "bool", "complex128", "complex32", "complex64", "float16", "float32",
    "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "int16", "int32", "int64", "int8", "uint16", "uint32", "uint64", "uint8",
}  # fmt: skip


def random_bytes(seed: int, nbytes: int) -> bytes:
    """Such that every element is one, a bool's too."""
    return np.random.default_rng(seed).integers(0, 2, nbytes, np.uint8).tobytes()


def tensor_of(data: bytes, dtype: torch.dtype, *shape: int, device: str = "cpu") -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).view(shape).to(device)


def image_of(tensor: torch.Tensor) -> bytes:
    """Return a contiguous tensor's bytes, not by way of staging."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    memory.set_(tensor.untyped_storage())
    begin = tensor.storage_offset() * tensor.itemsize
    return memory[begin : begin + tensor.numel() * tensor.itemsize].cpu().numpy().tobytes()


def test_the_list_is_torchs_and_has_kinds_of_every_sort():
    names = {str(dtype).removeprefix("torch.") for dtype in DTYPES}
    assert {"float32", "float4_e2m1fn_x2", "int4", "uint1", "bits8", "qint8", "quint4x2"} <= names
    assert len(DTYPES) - len(PLAIN) == len(QUANTIZED)
    assert all(torch.empty(0, dtype=dtype).is_quantized == (dtype in QUANTIZED) for dtype in DTYPES)


@of_any_dtype
@on_each_device
def test_a_buffer_moves_the_bytes_both_ways(dtype, device, seed):
    buffer = staging.CpuGpuBuffer(6, 3, dtype=dtype, device=device, with_numpy=False)
    row = 3 * dtype.itemsize
    assert image_of(buffer.cpu) == image_of(buffer.gpu) == bytes(6 * row)

    data = random_bytes(seed, 6 * row)
    buffer.cpu.view(torch.uint8).copy_(tensor_of(data, torch.uint8, 6, row))
    buffer.copy_to_gpu(4)
    assert image_of(buffer.gpu) == data[: 4 * row] + bytes(2 * row)
    assert image_of(buffer.fetch(5).result()) == (data[: 4 * row] + bytes(2 * row))[: 5 * row]
    buffer.cpu.view(torch.uint8).zero_()
    buffer.copy_to_cpu(3)
    assert image_of(buffer.cpu) == data[: 3 * row] + bytes(3 * row)
    with buffer.fill(2) as rows:
        rows.view(torch.uint8).copy_(tensor_of(data[2 * row : 4 * row], torch.uint8, 2, row))
    assert image_of(buffer.gpu) == data[2 * row : 4 * row] + data[2 * row : 4 * row] + bytes(
        2 * row
    )


@of_any_dtype
@pytest.mark.cuda
def test_a_captured_copy_replays_the_refilled_bytes(dtype, seed):
    data = random_bytes(seed, 8 * dtype.itemsize)
    buffer = staging.CpuGpuBuffer(8, dtype=dtype, device="cuda", with_numpy=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        buffer.copy_to_gpu()
    buffer.cpu.view(torch.uint8).copy_(tensor_of(data, torch.uint8, len(data)))
    buffer.refill()
    graph.replay()
    torch.cuda.synchronize()
    assert image_of(buffer.gpu) == data
    del graph


@of_any_dtype
@on_each_device
def test_np_is_a_view_or_is_refused_by_name(dtype, device, seed):
    name = str(dtype).removeprefix("torch.")
    if name not in WITH_NUMPY:
        with pytest.raises(ValueError, match=f"{dtype} has no NumPy counterpart.*with_numpy=False"):
            staging.CpuGpuBuffer(4, dtype=dtype, device=device)
        with pytest.raises(ValueError, match=f"{dtype} has no NumPy counterpart.*with_numpy=False"):
            staging.StagingGroup(device, {"a": (4, dtype)})
        return
    pytest.importorskip("ml_dtypes")
    buffer = staging.CpuGpuBuffer(4, dtype=dtype, device=device)
    assert buffer.np.dtype.name == name
    assert buffer.np.dtype.itemsize == dtype.itemsize
    data = random_bytes(seed, 4 * dtype.itemsize)
    buffer.np.view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    assert image_of(buffer.copy_to_gpu()) == data
    with buffer.fill(2) as rows:
        rows[:] = buffer.np[2:]
    assert image_of(buffer.gpu)[: len(data) // 2] == data[len(data) // 2 :]
    assert staging.content_key(buffer.np) == staging.tensor_hexdigest(buffer.cpu)


@of_any_dtype
@on_each_device
def test_a_group_moves_the_bytes_both_ways(dtype, device, seed):
    group = staging.StagingGroup(device, {"a": (5, dtype), "b": ((2, 3), dtype)}, with_numpy=False)
    data = random_bytes(seed, 6 * dtype.itemsize)
    assert image_of(group["b"].gpu) == bytes(len(data))
    group["b"].cpu.view(torch.uint8).view(-1).copy_(tensor_of(data, torch.uint8, len(data)))
    group.copy_to_gpu()
    assert image_of(group["b"].gpu) == data
    assert image_of(group["a"].gpu) == bytes(5 * dtype.itemsize)
    group["b"].cpu.view(torch.uint8).zero_()
    group.copy_to_cpu()
    assert image_of(group["b"].cpu) == data


@of_any_dtype
@on_each_device
def test_staged_rows_write_the_bytes(dtype, device, seed):
    table = staging.StagedRows(3, 8, dtype, device)
    data = random_bytes(seed, 4 * dtype.itemsize)
    table.stage(1, 2, tensor_of(data, dtype, 4))
    strided = tensor_of(b"".join(bytes([b]) * 2 for b in data[:2]), torch.uint8, 4)  # of bytes
    if dtype.itemsize == 1:
        table.stage(2, 0, strided.view(dtype)[::2])
    table.apply()
    row = 8 * dtype.itemsize
    image = image_of(table.gpu)
    assert image[:row] == bytes(row)
    assert image[row : 2 * row] == bytes(2 * dtype.itemsize) + data + bytes(2 * dtype.itemsize)
    if dtype.itemsize == 1:
        assert image[2 * row :] == data[:2] + bytes(6)
    if str(dtype).removeprefix("torch.") not in WITH_NUMPY:
        with pytest.raises(TypeError, match=f"torch.Tensor for a table of {dtype}"):
            table.stage(0, 0, [1, 0])


@of_any_dtype
@pytest.mark.parametrize("way", ["cpu cpu", "cpu cuda", "cuda cpu", "cuda cuda"])
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::staging.SlowPathWarning")
def test_slices_move_the_bytes(dtype, way, snapshot, seed):
    source, target = way.split()
    data = random_bytes(seed, 12 * dtype.itemsize)
    row = 4 * dtype.itemsize
    for columns in (4, 3):  # whole, and with gaps
        rows = tensor_of(data, dtype, 3, 4, device=source)
        one = tensor_of(bytes(len(data)), dtype, 3, 4, device=target)
        many = tensor_of(bytes(len(data)), dtype, 3, 4, device=target)
        staging.copy_slice(rows[:, :columns], one[:, :columns], 2, snapshot=snapshot)
        staging.copy_slices(
            [(rows[i, :columns], many[i, :columns], columns) for i in range(2)], snapshot=snapshot
        )
        torch.cuda.synchronize()
        width = columns * dtype.itemsize
        wanted = b"".join(data[i * row :][:width] + bytes(row - width) for i in range(2))
        assert image_of(one) == image_of(many) == wanted + bytes(row)


@of_any_dtype
@on_each_device
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_bytes_and_digests_are_those_of_the_elements(dtype, device, strided, seed):
    data = random_bytes(seed, 24 * dtype.itemsize)
    tensor = tensor_of(data, dtype, 4, 6, device=device)
    same = tensor_of(data, dtype, 4, 6)
    if strided:
        tensor = tensor.t()
        elements = np.frombuffer(data, np.dtype((np.void, dtype.itemsize))).reshape(4, 6)
        data = elements.T.tobytes()
        same = tensor_of(data, dtype, 6, 4)
    assert bytes(staging.tensor_data(tensor)) == data
    for algorithm in ("blake3", "sha256"):
        assert staging.tensor_digest(tensor, algorithm) == staging.tensor_digest(same, algorithm)
        raw = staging.tensor_digest(tensor, algorithm, framed=False)
        plain = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        assert raw == staging.tensor_digest(plain, algorithm, framed=False)
        assert staging.digest_async(tensor, algorithm).result() == staging.tensor_digest(
            same, algorithm
        )
    assert staging.content_key(tensor) == staging.tensor_hexdigest(same)


@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_of_one_size_have_digests_that_differ(device, seed):
    data = random_bytes(seed, 16)
    digests = [
        staging.tensor_digest(tensor_of(data, dtype, 16 // dtype.itemsize, device=device))
        for dtype in PLAIN
    ]
    assert len(set(digests)) == len(PLAIN)


@of_any_dtype
@pytest.mark.cuda
def test_pinned_tensors_and_views_of_them_have_the_bytes(dtype, seed):
    data = random_bytes(seed, 6 * dtype.itemsize)
    assert image_of(staging.pinned_zeros(6, dtype=dtype)) == bytes(len(data))
    pinned = staging.pinned_empty(2, 3, dtype=dtype)
    pinned.view(torch.uint8).view(-1).copy_(tensor_of(data, torch.uint8, len(data)))
    assert image_of(pinned) == data
    assert bytes(staging.tensor_data(pinned)) == data
    assert image_of(staging.pin(tensor_of(data, dtype, 2, 3))) == data
    transposed = staging.pin(tensor_of(data, dtype, 2, 3).t())
    assert transposed.shape == (3, 2)
    assert transposed.is_pinned()
    assert bytes(staging.tensor_data(transposed.t())) == data
    gaps = tensor_of(data, dtype, 2, 3)[:, ::2]
    assert bytes(staging.tensor_data(staging.pin(gaps))) == bytes(staging.tensor_data(gaps))
    if staging.uva_available("cuda"):
        assert bytes(staging.tensor_data(staging.uva_view(pinned, "cuda"))) == data
        mapped = staging.UvaBuffer(6, dtype=dtype, device="cuda", with_numpy=False)
        assert bytes(staging.tensor_data(mapped.uva)) == bytes(len(data))


QUANTIZED_DTYPES = pytest.mark.parametrize("dtype", sorted(QUANTIZED, key=str), ids=str)


@QUANTIZED_DTYPES
@on_each_device
def test_a_quantized_dtype_is_refused_by_name_where_a_tensor_is_made(dtype, device):
    makes = [
        lambda: staging.CpuGpuBuffer(4, dtype=dtype, device=device, with_numpy=False),
        lambda: staging.CpuGpuBuffer(4, dtype=dtype, device=device),
        lambda: staging.StagingGroup(device, {"a": (4, dtype)}),
        lambda: staging.StagedRows(2, 4, dtype, device),
        lambda: staging.pinned_empty(4, dtype=dtype),
        lambda: staging.pinned_zeros(4, dtype=dtype),
        lambda: staging.UvaBuffer(4, dtype=dtype, device="cuda"),
    ]
    for make in makes:
        with pytest.raises(ValueError, match=f"got {dtype}"):
            make()


@QUANTIZED_DTYPES
@on_each_device
def test_what_takes_a_quantized_tensor_has_its_integers_or_refuses_it_by_name(dtype, device):
    tensor = torch.empty(2, 4, dtype=dtype, device=device)  # with neither scale nor zero point
    other = torch.empty(2, 4, dtype=dtype)
    for copy in (
        lambda: staging.copy_slice(tensor, other, 2),
        lambda: staging.copy_slice(other, tensor, 2, snapshot=True),
        lambda: staging.copy_slices([(tensor, other, 2)]),
        lambda: staging.pin(other),
        lambda: staging.tensor_digest(tensor),
        lambda: staging.digest_async(tensor),
        lambda: staging.content_key([tensor]),
    ):
        with pytest.raises(TypeError, match=str(dtype).removeprefix("torch.")):
            copy()
    if dtype in {torch.quint4x2, torch.quint2x4}:
        for read in (
            lambda: staging.tensor_data(tensor),
            lambda: staging.tensor_digest(tensor, framed=False),
            lambda: staging.tensor_digest(tensor, "sha256", framed=False),
        ):
            with pytest.raises(TypeError, match=rf"{dtype} share a byte.*int_repr"):
                read()
        return
    data = bytes(staging.tensor_data(tensor))
    assert data == image_of(tensor)
    plain = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    for algorithm in ("blake3", "sha256"):
        assert staging.tensor_digest(tensor, algorithm, framed=False) == staging.tensor_digest(
            plain, algorithm, framed=False
        )


@on_each_device
def test_a_strided_quantized_tensor_is_its_integers_in_logical_order(device):
    floats = torch.arange(12.0).reshape(3, 4)
    for dtype in (torch.qint8, torch.quint8, torch.qint32):
        tensor = torch.quantize_per_tensor(floats, 1.0, 3, dtype)
        wanted = tensor.int_repr().t().contiguous()
        strided = tensor.to(device).t()
        assert bytes(staging.tensor_data(strided)) == bytes(staging.tensor_data(wanted))
        same = torch.quantize_per_tensor(floats.t().contiguous(), 1.0, 3, dtype)
        for algorithm in ("blake3", "sha256"):
            assert staging.tensor_digest(strided, algorithm) == staging.tensor_digest(
                same, algorithm
            )
