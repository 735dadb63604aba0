"""copy_slice, and the operator that compiled functions call."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import staging  # noqa: E402
from staging import copy_slice, sim  # noqa: E402
from staging.extension import _C  # noqa: E402

PLACES = ["cpu", "pinned", pytest.param("cuda", marks=pytest.mark.cuda)]


def put(values: torch.Tensor, place: str) -> torch.Tensor:
    """``values`` with the same strides at ``place``."""
    if place == "cpu" or (place == "pinned" and not torch.cuda.is_available()):
        return values
    storage = values.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8).set_(storage)
    moved = flat.pin_memory() if place == "pinned" else flat.to("cuda")
    return (
        torch.empty(0, dtype=values.dtype, device=moved.device)
        .set_(moved.untyped_storage(), values.storage_offset(), values.shape, values.stride())
    )  # fmt: skip


def random_bytes(shape: tuple[int, ...], dtype: torch.dtype, rng: np.random.Generator):
    count = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    data = torch.from_numpy(rng.integers(0, 2, count, dtype=np.uint8))
    return data.view(dtype).reshape(shape)


@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("target", PLACES)
def test_copies_between_any_two_places(source, target):
    from_tensor = put(torch.arange(20).reshape(5, 4), source)
    to_tensor = put(torch.zeros(6, 4, dtype=torch.int64), target)
    result = copy_slice(from_tensor, to_tensor, 3)
    assert result.shape == (3, 4)
    assert result.data_ptr() == to_tensor.data_ptr()
    seen = put_back(to_tensor)
    assert seen[:3].tolist() == torch.arange(12).reshape(3, 4).tolist()
    assert not seen[3:].any()


LAYOUTS = {
    "dense": lambda t: t,
    "rows with a gap": lambda t: torch.cat([t, t], dim=-1)[..., : t.shape[-1]],
    "columns with a gap": lambda t: torch.stack([t, t], dim=-1)[..., 0],
    "transposed": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "offset": lambda t: torch.cat([t[:1], t])[1:],
}


@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize(("from_layout", "to_layout"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_copies_any_strides(source, target, from_layout, to_layout):
    values = torch.arange(4 * 3 * 5, dtype=torch.int32).reshape(4, 3, 5)
    from_tensor = put(LAYOUTS[from_layout](values), source)
    to_tensor = put(LAYOUTS[to_layout](torch.zeros_like(values)), target)
    copy_slice(from_tensor, to_tensor, 3)
    seen = torch.empty_like(values)
    seen.copy_(put_back(to_tensor))
    assert torch.equal(seen[:3], values[:3])
    assert not seen[3:].any()


def put_back(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor of the same values; its whole storage is moved, gaps and all."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a copy into pinned memory does not wait
    if tensor.device.type == "cpu":
        return tensor
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return torch.empty(0, dtype=tensor.dtype).set_(
        flat.cpu().untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int16, torch.bfloat16, torch.float64, torch.complex128], ids=str
)
@pytest.mark.cuda
def test_copies_every_width_there_and_back(dtype, seed):
    rng = np.random.default_rng(seed)
    values = random_bytes((7, 3), dtype, rng)
    on_device = torch.empty_like(values, device="cuda")
    back = torch.empty_like(values)
    copy_slice(values, on_device, 7)
    copy_slice(on_device, back, 7)
    assert torch.equal(back.view(torch.uint8), values.view(torch.uint8))


def test_nothing_is_copied_for_no_rows():
    to_tensor = torch.ones(3)
    assert copy_slice(torch.zeros(3), to_tensor, 0).shape == (0,)
    assert to_tensor.tolist() == [1, 1, 1]


def test_the_whole_destination_is_returned_itself():
    to_tensor = torch.zeros(3)
    assert copy_slice(torch.ones(4), to_tensor, 3) is to_tensor


# -- what is refused ----------------------------------------------------------------------


def test_a_different_dtype_is_a_type_error_that_names_both():
    with pytest.raises(TypeError, match=r"int.*float|float.*int|long"):
        copy_slice(torch.zeros(3, dtype=torch.int64), torch.zeros(3), 3)


@pytest.mark.parametrize("length", [-1, 4, 2**40])
def test_a_length_outside_is_a_value_error_with_the_numbers(length):
    with pytest.raises(ValueError, match=rf"0\.\.3.*got {length}"):
        copy_slice(torch.zeros(5), torch.zeros(3), length)


def test_different_trailing_shapes_are_a_value_error():
    with pytest.raises(ValueError, match="one shape behind dimension 0"):
        copy_slice(torch.zeros(3, 2), torch.zeros(3, 4), 1)


def test_no_dimension_is_a_value_error():
    with pytest.raises(ValueError, match="at least one dimension"):
        copy_slice(torch.tensor(1.0), torch.tensor(2.0), 0)


def test_an_expanded_destination_is_a_value_error():
    with pytest.raises(ValueError, match="expanded"):
        copy_slice(torch.zeros(3, 2), torch.zeros(1, 2).expand(3, 2), 3)


def test_an_overlap_is_a_value_error_and_the_same_memory_is_not():
    memory = torch.arange(8)
    with pytest.raises(ValueError, match="overlap"):
        copy_slice(memory[:4], memory[2:6], 4)
    copy_slice(memory, memory, 8)
    assert memory.tolist() == list(range(8))


def test_memory_is_compared_by_address_whichever_storage_it_is_of():
    memory = np.arange(8)
    with pytest.raises(ValueError, match="overlap"):
        copy_slice(torch.from_numpy(memory[:4]), torch.from_numpy(memory[2:6]), 4)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("function", ["copy_slice", "copy_slices"])
def test_interleaved_slices_of_one_tensor_are_copied(place, function):
    def copy(source, target):
        if function == "copy_slice":
            copy_slice(source, target, len(source))
        else:
            staging.copy_slices([(source, target, len(source))])

    wanted = torch.arange(48).reshape(6, 8)
    memory = put(wanted.clone(), place)
    copy(memory[:, 0:2], memory[:, 4:6])  # columns beside columns
    wanted[:, 4:6] = wanted[:, 0:2]
    copy(memory[::2], memory[1::2])  # every other row
    wanted[1::2] = wanted[::2]
    copy(memory.t()[1::2], memory.t()[::2])
    wanted.t()[::2] = wanted.t()[1::2]
    copy(memory[0, :3].expand(2, 3), memory[2:4, 3:6])  # one row, twice
    wanted[2:4, 3:6] = wanted[0, :3]
    assert put_back(memory).tolist() == wanted.tolist()
    for source, target in (
        (memory[:, 0:2], memory[:, 1:3]),
        (memory[:3], memory[2:5]),
        (memory[0, :3].expand(2, 3), memory[0:2, 2:5]),
    ):
        with pytest.raises(ValueError, match="overlap in memory"):
            copy(source, target)
    assert put_back(memory).tolist() == wanted.tolist()


@pytest.mark.parametrize("place", PLACES)
def test_a_destination_whose_elements_share_memory_is_refused(place):
    memory = put(torch.zeros(16), place)
    for target in (
        memory[:3].expand(4, 3),
        memory.unfold(0, 4, 1)[:4],  # windows that slide by one
        memory.as_strided((4, 3), (2, 3)),  # 3 * 2 is 2 * 3
    ):
        source = torch.ones(target.shape)
        with pytest.raises(ValueError, match=r"to_tensor .*share memory"):
            copy_slice(source, target, len(source))
        with pytest.raises(ValueError, match=r"slices\[0\].*share memory"):
            staging.copy_slices([(source, target, len(source))])
    assert not put_back(memory).any()
    copy_slice(torch.ones(3, 2), memory.as_strided((3, 2), (2, 3)), 3)  # they nest in no order
    assert put_back(memory).nonzero().flatten().tolist() == [0, 2, 3, 4, 5, 7]


def element_addresses(sizes, strides, offset):
    axes = np.indices(sizes).reshape(len(sizes), -1)
    return offset + (np.array(strides)[:, None] * axes).sum(0)


@st.composite
def strided_pairs(draw):
    """Sizes, and strides and an offset for each of two tensors over one memory."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    strides = st.lists(st.integers(0, 12), min_size=len(sizes), max_size=len(sizes))
    one = draw(strides)
    two = draw(st.one_of(st.just(one), strides))
    return sizes, one, draw(st.integers(0, 20)), two, draw(st.integers(0, 20))


@settings(max_examples=400, deadline=None)
@given(pair=strided_pairs(), dtype=st.sampled_from([torch.uint8, torch.int32, torch.complex128]))
def test_what_is_refused_as_an_overlap_is_one_and_all_else_is_copied(pair, dtype):
    sizes, from_strides, from_offset, to_strides, to_offset = pair
    memory = torch.arange(200).to(dtype)
    source = memory.as_strided(sizes, from_strides, from_offset)
    target = memory.as_strided(sizes, to_strides, to_offset)
    read = element_addresses(sizes, from_strides, from_offset)
    written = element_addresses(sizes, to_strides, to_offset)
    # Onto itself nothing moves, even where an element is there twice.
    same = bool((read == written).all())
    allowed = same or (len(set(written)) == len(written) and not set(read) & set(written))
    wanted = memory.numpy().copy()
    wanted[written] = wanted[read] if allowed else wanted[written]
    refused = ""
    try:
        copy_slice(source, target, sizes[0])
    except ValueError as error:
        refused = str(error)
    if allowed:
        assert not refused or (same and "is expanded" in refused)
    else:
        assert "overlap in memory" in refused or "share memory" in refused
    assert memory.numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_whose_storage_was_made_smaller_is_refused(place):
    whole = put(torch.zeros(4, 4), place)
    short = put(torch.ones(4, 4), "cpu" if place == "pinned" else place)
    short.untyped_storage().resize_(32)
    with pytest.raises(TypeError, match=r"from_tensor needs 64 bytes of storage and has 32"):
        copy_slice(short, whole, 4)
    with pytest.raises(TypeError, match=r"to_tensor needs 64 bytes of storage and has 32"):
        copy_slice(whole, short, 4)
    copy_slice(short, whole, 2)
    assert put_back(whole).sum() == 8


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (torch.zeros(3).to_sparse(), "layout"),
        (torch.zeros(3, dtype=torch.complex64).conj(), "resolve_conj"),
        (torch.zeros(3, dtype=torch.complex64).conj().imag, "resolve_neg"),
        (torch.zeros(3, requires_grad=True), "differentiable"),
        (torch.zeros(3, device="meta"), "meta"),
    ],
    ids=["sparse", "conj", "neg", "grad", "meta"],
)
def test_what_has_no_bytes_to_copy_is_a_type_error(tensor, word):
    with pytest.raises(TypeError, match=word):
        copy_slice(tensor, torch.zeros(3, dtype=tensor.dtype), 3)


def test_a_gradient_may_be_ignored_on_purpose():
    with torch.no_grad():
        copy_slice(torch.ones(3, requires_grad=True), torch.zeros(3), 3)


def test_something_else_than_a_tensor_is_a_type_error_that_names_the_argument():
    with pytest.raises(TypeError, match=r"to_tensor must be a torch\.Tensor, got list"):
        copy_slice(torch.zeros(3), [0, 0, 0], 3)


# -- races and lifetimes ------------------------------------------------------------------


@pytest.mark.sim
@pytest.mark.cuda
def test_a_pinned_source_is_read_by_the_transfer_and_a_snapshot_at_once():
    pinned = torch.ones(64).pin_memory()
    late, early = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    with sim.policy("lazy"):
        copy_slice(pinned, late, 64)
        copy_slice(pinned, early, 64, snapshot=True)
        pinned.fill_(2)
        assert late.cpu().unique().tolist() == [2]
        assert early.cpu().unique().tolist() == [1]


@pytest.mark.sim
@pytest.mark.cuda
def test_a_pageable_source_is_taken_at_once_and_the_call_does_not_wait():
    source = torch.ones(64)
    target = torch.zeros(64, device="cuda")
    with sim.policy("lazy"):
        with sim.count() as counts:
            copy_slice(source, target, 64)
        assert counts["cudaStreamSynchronize"] == counts["cudaEventSynchronize"] == 0
        assert sim.pending() > 0
        source.fill_(2)
        assert target.cpu().unique().tolist() == [1]


@pytest.mark.sim
@pytest.mark.cuda
@pytest.mark.parametrize("make_pinned", [lambda t: t.pin_memory(), None], ids=["torch's", "other"])
def test_a_source_dropped_in_flight_keeps_its_memory(make_pinned):
    with sim.policy("lazy"):
        sim.clear_reports()
        if make_pinned is None:
            pinned = torch.ones(4096)
            assert torch.cuda.cudart().cudaHostRegister(pinned.data_ptr(), 4096 * 4, 0) == 0
        else:
            pinned = make_pinned(torch.ones(4096))
        address = pinned.data_ptr()
        target = torch.zeros(4096, device="cuda")
        copy_slice(pinned[1:], target, 4095)
        del pinned
        gc.collect()
        # Whoever gets that memory next overwrites it.
        others = [torch.zeros(4096).pin_memory().fill_(7) for _ in range(4)]
        pageable = [torch.full((4096,), 7.0) for _ in range(4)]
        assert target.cpu()[:4095].unique().tolist() == [1]
        assert sim.reports() == []
        del others, pageable
        if make_pinned is None:
            torch.cuda.synchronize()
            assert torch.cuda.cudart().cudaHostUnregister(address) == 0


@pytest.mark.sim
@pytest.mark.cuda
def test_a_gap_in_memory_is_one_launch():
    source = torch.ones(16, 8).pin_memory()[:, :5]
    target = torch.zeros(16, 5, device="cuda")
    copy_slice(source, target, 16)
    with sim.count() as counts:
        copy_slice(source, target, 16)
    assert counts["cudaLaunchKernel"] == 1
    assert counts["cudaMemcpy2DAsync"] == counts["cudaMemcpyAsync"] == 0
    assert torch.equal(target.cpu(), source)


@pytest.mark.sim
@pytest.mark.cuda
def test_a_contiguous_pinned_source_is_one_transfer_and_no_query():
    source = torch.ones(64).pin_memory()
    target = torch.zeros(64, device="cuda")
    copy_slice(source, target, 32)
    with sim.count() as counts:
        for _ in range(10):
            copy_slice(source, target, 32)
    assert counts["cudaMemcpyAsync"] == 10
    assert counts["cudaPointerGetAttributes"] == counts["cudaEventQuery"] == 0


@pytest.mark.sim
@pytest.mark.cuda
def test_runs_on_the_stream_given():
    side = torch.cuda.Stream()
    source = torch.ones(64).pin_memory()
    target = torch.zeros(64, device="cuda")
    with sim.record() as calls:
        copy_slice(source, target, 64, stream=side)
    assert {call.stream for call in calls if call.name == "cudaMemcpyAsync"} == {side.cuda_stream}


@pytest.mark.sim
@pytest.mark.cuda
def test_between_devices():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    source = torch.arange(8).to("cuda:0")
    target = torch.zeros(8, dtype=torch.int64, device="cuda:1")
    copy_slice(source, target, 5)
    assert target.cpu().tolist() == [0, 1, 2, 3, 4, 0, 0, 0]


@pytest.mark.sim
@pytest.mark.cuda
def test_under_capture_a_pinned_copy_is_replayed_and_its_memory_kept():
    source = torch.ones(64).pin_memory()
    target = torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copy_slice(source, target, 64)
    source.fill_(5)
    del source
    gc.collect()
    others = [torch.zeros(64).pin_memory() for _ in range(8)]
    graph.replay()
    assert target.cpu().unique().tolist() == [5]
    del others


@pytest.mark.sim
@pytest.mark.cuda
def test_under_capture_a_copy_that_cannot_be_replayed_raises():
    target = torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="graph"):
        with torch.cuda.graph(graph):
            copy_slice(torch.ones(64), target, 64)


# -- the operator -------------------------------------------------------------------------


def test_the_operator_passes_opcheck():
    torch.library.opcheck(
        torch.ops.staging.copy_slice_, (torch.ones(8, 3), torch.zeros(8, 3), 5), {"snapshot": True}
    )


def test_the_operator_returns_nothing_and_changes_its_destination():
    target = torch.zeros(4)
    assert torch.ops.staging.copy_slice_(torch.ones(4), target, 2) is None
    assert target.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_function_gives_eagers_bytes(dynamic):
    def step(source: torch.Tensor, target: torch.Tensor, n: int) -> torch.Tensor:
        torch.ops.staging.copy_slice_(source, target, n)
        return target * 2

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for n in (2, 3):
        source = torch.arange(12.0).reshape(4, 3)
        eager_target, compiled_target = torch.zeros(5, 3), torch.zeros(5, 3)
        expected = step(source, eager_target, n)
        assert torch.equal(compiled(source, compiled_target, n), expected)
        assert torch.equal(compiled_target, eager_target)


def test_the_operator_reports_errors_by_type():
    with pytest.raises(ValueError, match="length"):
        torch.ops.staging.copy_slice_(torch.zeros(3), torch.zeros(3), 4)
    with pytest.raises(TypeError, match="dtype"):
        torch.ops.staging.copy_slice_(torch.zeros(3), torch.zeros(3, dtype=torch.int8), 3)


def test_the_extension_was_built_with_the_operator():
    assert _C is not None
    assert hasattr(torch.ops.staging, "copy_slice_")
