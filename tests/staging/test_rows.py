"""Staged rows: which bytes of a table change, in how many operations, and what is refused."""

from __future__ import annotations

import array
import gc
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from external_streams import external_stream  # noqa: E402

from staging import StagedRows, apply_rows, sim  # noqa: E402

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
PLACES = ["cpu", CUDA]
DTYPES = [
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float16,
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bfloat16,
    torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


@pytest.mark.parametrize("device", PLACES)
def test_what_is_staged_reaches_the_table_when_it_is_applied(device):
    table = StagedRows(4, 6, torch.int32, device)
    table.stage(1, 2, [5, 6])
    table.stage(3, 0, np.array([7, 8, 9], np.int32))
    table.stage(0, 5, 4)
    table.stage(2, 0, torch.tensor([1, 2], dtype=torch.int32))
    table.stage(2, 2, array.array("i", [3]))
    assert (table.pending, table.pending_nbytes) == (5, 36)
    assert not table.gpu.cpu().any()
    assert table.apply() is table.gpu
    assert table.gpu.tolist() == [
        [0, 0, 0, 0, 0, 4],
        [0, 0, 5, 6, 0, 0],
        [1, 2, 3, 0, 0, 0],
        [7, 8, 9, 0, 0, 0],
    ]
    assert table.pending == 0


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_as_a_tensor(device, dtype):
    table = StagedRows(3, 8, dtype, device)
    values = torch.arange(6).to(torch.uint8).repeat_interleave(dtype.itemsize)[: 6 * dtype.itemsize]
    values = (values % 2).view(dtype) if dtype != torch.bool else torch.tensor([1, 0] * 3).bool()
    table.stage(1, 1, values)
    table.stage(2, 3, values[:1])
    table.apply()
    result = table.gpu.cpu().view(torch.uint8)
    width = dtype.itemsize
    assert torch.equal(result[1, width : 7 * width], values.view(torch.uint8))
    assert torch.equal(result[2, 3 * width : 4 * width], values[:1].view(torch.uint8))
    assert not result[0].any()
    assert not result[1, 7 * width :].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2], ids=str)
def test_dtypes_of_ml_dtypes_as_arrays_and_numbers(dtype):
    pytest.importorskip("ml_dtypes")
    from staging.buffer import numpy_dtype_of

    table = StagedRows(2, 4, dtype, "cpu")
    table.stage(0, 0, np.array([1.5, 2.0]).astype(numpy_dtype_of(dtype)))
    table.stage(1, 1, [0.5, 1.0])
    table.apply()
    assert table.gpu.float().tolist() == [[1.5, 2, 0, 0], [0, 0.5, 1, 0]]


@pytest.mark.parametrize("device", PLACES)
def test_strided_values_and_views_are_taken_by_value(device):
    table = StagedRows(3, 4, torch.int64, device)
    array_values = np.arange(8, dtype=np.int64)
    tensor_values = torch.arange(8)
    table.stage(0, 0, array_values[::2])
    table.stage(1, 0, tensor_values[::2])
    table.stage(2, 0, array_values[:4])
    array_values[:] = -1
    tensor_values.fill_(-1)
    table.apply()
    assert table.gpu.tolist() == [[0, 2, 4, 6], [0, 2, 4, 6], [0, 1, 2, 3]]


@pytest.mark.parametrize("device", PLACES)
def test_overlapping_writes_apply_in_order(device):
    table = StagedRows(1, 8, torch.int32, device)
    table.stage(0, 0, [1] * 8)
    table.stage(0, 2, [2] * 4)
    table.stage(0, 5, [3, 3])
    table.stage(0, 0, [4])
    table.apply()
    assert table.gpu.tolist() == [[4, 1, 2, 2, 2, 3, 3, 1]]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize(
    ("write", "error", "what"),
    [
        ((-1, 0, [1]), ValueError, r"row must be in 0\.\.3.*got -1"),
        ((4, 0, [1]), ValueError, r"row must be in 0\.\.3.*got 4"),
        ((0, -1, [1]), ValueError, r"start must be in 0\.\.6.*got -1"),
        ((0, 7, []), ValueError, r"start must be in 0\.\.6.*got 7"),
        ((0, 4, [1, 2, 3]), ValueError, r"values must be at most 2 elements.*got 3"),
        ((0, 0, [[1, 2]]), ValueError, "one dimension"),
        ((0, 0, np.zeros((1, 1), np.int32)), ValueError, "one dimension"),
        ((0, 0, torch.zeros(1, 1, dtype=torch.int32)), ValueError, "one dimension"),
        ((0, 0, np.zeros(1, np.int64)), TypeError, "dtype int32, got int64"),
        ((0, 0, torch.zeros(1)), TypeError, r"dtype torch.int32, got torch.float32"),
        ((0, 0, torch.zeros(1, dtype=torch.int32, device="meta")), TypeError, "CPU"),
        ((0, 0, "12"), TypeError, "values must be numbers, got str"),
        ((0, 0, ["1"]), TypeError, "values must be numbers, got list"),
        ((0, 0, [None]), TypeError, "values must be numbers"),
        ((0, 0, [1.5]), TypeError, r"float64.*table's dtype int32"),
        ((0, 0, 1.5), TypeError, r"float64.*table's dtype int32"),
        ((0, 0, [1 << 40]), ValueError, "values must fit the table's dtype int32"),
    ],
)
def test_bad_writes_are_refused_and_nothing_is_staged(device, write, error, what):
    table = StagedRows(4, 6, torch.int32, device)
    with pytest.raises(error, match=what):
        table.stage(*write)
    assert table.pending == 0


@pytest.mark.parametrize("device", PLACES)
def test_discard_forgets(device):
    table = StagedRows(2, 2, torch.int32, device)
    table.stage(0, 0, [1, 2])
    assert table.discard() == 1
    table.apply()
    assert not table.gpu.cpu().any()


def test_a_table_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="rows must be >= 0, got -1"):
        StagedRows(-1, 2, torch.int32, "cpu")
    with pytest.raises(ValueError, match="device"):
        StagedRows(1, 2, torch.int32, "meta")


@pytest.mark.parametrize("device", PLACES)
def test_a_table_without_cells_takes_no_write(device):
    table = StagedRows(0, 4, torch.int32, device)
    with pytest.raises(ValueError, match="row"):
        table.stage(0, 0, [1])
    table.apply()


def test_an_application_counts_as_a_change_for_autograd():
    table = StagedRows(2, 2, torch.float32, "cpu")
    x = torch.ones(2, 2, requires_grad=True)
    loss = (table.gpu * x).sum()
    table.stage(0, 0, [1.0])
    table.apply()
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


@pytest.mark.cuda
def test_tables_on_several_places_or_named_twice_are_refused():
    a, b = StagedRows(2, 2, torch.int32, "cuda"), StagedRows(2, 2, torch.int32, "cpu")
    for table in (a, b):
        table.stage(0, 0, [1])
    with pytest.raises(ValueError, match=r"one device.*tables\[1\]"):
        apply_rows([a, b])
    with pytest.raises(ValueError, match=r"tables\[1\].*twice"):
        apply_rows([a, a])
    with pytest.raises(TypeError):
        apply_rows([a, 3])
    assert (a.pending, b.pending) == (1, 1)


# -- over the simulated device ---------------------------------------------------------------


@pytest.mark.sim
@pytest.mark.cuda
def test_several_tables_are_one_launch_and_one_event():
    tables = [
        StagedRows(64, 128, dtype, "cuda") for dtype in (torch.int32, torch.int64, torch.int8)
    ]

    def stage():
        for i in range(20):
            for table in tables:
                table.stage(i, 3 * i, [i, i + 1])

    stage()
    apply_rows(tables)
    stage()
    with sim.count() as calls:
        apply_rows(tables)
    assert calls["cudaLaunchKernel"] == calls["cudaEventRecord"] == 1
    assert calls["cudaMemcpyAsync"] == calls["cudaStreamSynchronize"] == 0
    for table in tables:
        assert table.gpu[19, 57:59].tolist() == [19, 20]


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("policy", ["lazy", "random"])
def test_random_writes_equal_writes_in_turn(policy, seed):
    rng = random.Random(seed)
    for _ in range(8):
        dtype = rng.choice([torch.int32, torch.int64, torch.uint8, torch.float64])
        rows, cols = rng.randrange(1, 20), rng.randrange(1, 200)
        table = StagedRows(rows, cols, dtype, "cuda")
        expected = torch.zeros(rows, cols, dtype=dtype)
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        torch.cuda.synchronize()
        with sim.policy(policy, seed=rng.randrange(1 << 20)):
            for _ in range(12):
                for _ in range(rng.randrange(12)):
                    row, start = rng.randrange(rows), rng.randrange(cols + 1)
                    count = rng.randrange(cols - start + 1)
                    values = torch.randint(0, 100, (count,)).to(dtype)
                    table.stage(row, start, values)
                    expected[row, start : start + count] = values
                    values.fill_(0)
                table.apply(stream=rng.choice(streams))
            torch.cuda.synchronize()
        assert torch.equal(table.gpu.cpu(), expected)
    assert sim.reports() == []


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("call", ["cudaLaunchKernel", "cudaEventRecord"])
def test_what_could_not_be_enqueued_stays_staged(call):
    from staging import DeviceError

    table = StagedRows(4, 4, torch.int32, "cuda")
    table.stage(0, 0, [1])
    table.stage(1, 0, [2])
    table.apply()
    table.stage(2, 0, [3])
    table.stage(3, 0, [4])
    with sim.fault(call, code=1), pytest.raises(DeviceError, match=call):
        table.apply()
    assert table.pending == 2
    table.apply()
    assert table.gpu.cpu()[:, 0].tolist() == [1, 2, 3, 4]


@pytest.mark.sim
@pytest.mark.cuda
def test_under_capture_it_is_refused_and_stays_staged():
    table = StagedRows(4, 4, torch.int32, "cuda")
    table.stage(0, 0, [1])
    table.apply()
    table.stage(1, 0, [2])
    torch.cuda.synchronize()
    other = torch.zeros(1, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        other.fill_(1)
        with pytest.raises(RuntimeError, match="CUDA graph"):
            table.apply()
    assert table.pending == 1


@pytest.mark.sim
@pytest.mark.cuda
def test_memory_of_a_table_that_is_gone_is_not_used_again_before_its_copies_are_done():
    with sim.policy("lazy"), external_stream() as stream:
        table = StagedRows(16, 256, torch.int32, "cuda")
        stream.wait_stream(torch.cuda.current_stream())
        address = table.gpu.data_ptr()
        table.stage(3, 0, [1, 2, 3])
        table.apply(stream=stream)
        del table
        gc.collect()
        assert torch.zeros(16, 256, dtype=torch.int32, device="cuda").data_ptr() != address
