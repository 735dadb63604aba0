"""tensor_data: the bytes of any dense tensor, in logical order."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import threading
import weakref
from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from staging import pinned_stats, sim, tensor_data  # noqa: E402
from staging.extension import _C  # noqa: E402

MiB = 1 << 20

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


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.t()], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("nbytes", [0, 8])
def test_a_tensor_whose_storage_was_shrunk_is_refused(view, nbytes):
    tensor = view(torch.arange(100).reshape(10, 10))
    tensor.untyped_storage().resize_(nbytes)
    with pytest.raises(TypeError, match="storage was resized"):
        tensor_data(tensor)


def test_negative_and_conjugate_views_of_dtypes_that_cannot_be_resolved_are_refused():
    tensor = torch._neg_view(torch.ones(3).to(torch.float8_e8m0fnu))
    with pytest.raises(TypeError, match=r"lazy view of torch\.float8_e8m0fnu"):
        tensor_data(tensor)
    with pytest.raises(TypeError, match=r"lazy view of torch\.float8_e8m0fnu"):
        tensor_data(tensor[::2])


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, 1:],
        lambda t: t[::2],
        lambda t: t.reshape(4, -1, t.shape[1]).permute(2, 0, 1),
    ],
    ids=["transposed", "columns", "rows", "permuted"],
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.complex128])
def test_a_large_strided_tensor_is_in_logical_order(dtype, view):
    tensor = view(filled((2048, 5 * MiB // 2048 // dtype.itemsize), dtype, seed=1))
    data = tensor_data(tensor)
    assert data == memoryview(tensor.contiguous().view(torch.uint8).reshape(-1).numpy())
    assert data.readonly


# -- how long a view lives -----------------------------------------------------------------


PLACES = {
    "contiguous": lambda t: t,
    "strided": lambda t: t.reshape(100, -1).t(),
    "device": lambda t: t.cuda(),
}
PLACE_NAMES = [
    "contiguous", "strided", pytest.param("device", marks=pytest.mark.cuda),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACE_NAMES)
@pytest.mark.parametrize("nbytes", [4000, 8 * MiB])
def test_slices_casts_and_copies_of_a_view_outlive_the_tensor_and_the_view(place, nbytes):
    source = torch.arange(nbytes // 400 * 100, dtype=torch.int32)
    expected = reference_bytes(PLACES[place](source).cpu())
    view = tensor_data(PLACES[place](source))
    derived = [view[8:], view[::2], view.cast("i"), memoryview(view), view.toreadonly()]
    wanted = [expected[8:], expected[::2], expected, expected, expected]
    view.release()
    del source, view
    gc.collect()
    for _ in range(3):  # takes the memory, were it free
        torch.full((nbytes // 4,), -1, dtype=torch.int32)
        bytearray(b"\xff") * nbytes
    assert [each.tobytes() for each in derived] == wanted
    assert derived[2].shape == (len(expected) // 4,)


def reference_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("place", PLACE_NAMES)
def test_zmq_sends_a_view_without_copying_it_and_holds_it(place):
    zmq = pytest.importorskip("zmq")
    source = torch.arange(1_000_000, dtype=torch.int32)
    expected = reference_bytes(PLACES[place](source).cpu())
    with zmq.Context() as context, context.socket(zmq.PAIR) as out, context.socket(zmq.PAIR) as to:
        out.bind("inproc://bytes")
        to.connect("inproc://bytes")
        view = tensor_data(PLACES[place](source))
        tracker = out.send(view, copy=False, track=True)
        del source, view
        gc.collect()
        torch.full((1_000_000,), -1, dtype=torch.int32)
        received = to.recv(copy=False)
        assert not tracker.done
        assert received.bytes == expected
        del received
        gc.collect()
        tracker.wait(10)


def test_the_last_view_lets_go_of_the_memory():
    array = np.zeros(1000, dtype=np.float32)
    alive = weakref.ref(array)  # the storage holds it
    view = tensor_data(torch.from_numpy(array))
    part = view[4:]
    del array, view
    gc.collect()
    assert alive() is not None
    assert bytes(part) == bytes(3996)
    del part
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.t()], ids=["own", "copied"])
def test_only_a_view_of_the_tensors_own_memory_keeps_it_from_being_resized(view):
    tensor = view(torch.zeros(8, 4))
    data = tensor_data(tensor)
    if tensor.is_contiguous():
        with pytest.raises(RuntimeError, match="resiz"):
            tensor.untyped_storage().resize_(1 << 20)
    else:
        tensor.untyped_storage().resize_(1 << 20)
    assert bytes(data) == bytes(128)


# -- from a device -------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_a_device_tensor_is_brought_to_the_host(dtype, view):
    tensor = filled((4, 6), dtype)
    assert bytes(tensor_data(tensor.to("cuda"))) == reference(tensor)
    moved = VIEWS[view](tensor.to("cuda"))
    assert bytes(tensor_data(moved)) == reference(VIEWS[view](tensor))


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3)])
def test_a_device_tensor_of_few_bytes(shape):
    tensor = filled(shape, torch.int32)
    view = tensor_data(tensor.to("cuda"))
    assert (bytes(view), view.format, view.readonly) == (reference(tensor), "B", True)


@pytest.mark.cuda
def test_a_device_tensor_has_no_writable_view():
    with pytest.raises(ValueError, match="writable=True needs a contiguous host tensor"):
        tensor_data(torch.zeros(4, device="cuda"), writable=True)


@pytest.mark.sim
@pytest.mark.parametrize("policy", ["eager", "lazy", "random", "threads"])
@pytest.mark.parametrize(
    "nbytes", [1, 256 * 1024 - 1, 256 * 1024, 3 * 256 * 1024 + 1, 4 * MiB - 1, 4 * MiB, 5 * MiB + 3]
)
def test_nothing_is_read_before_it_has_arrived(policy, nbytes, seed):
    first = filled((nbytes,), torch.uint8, seed=seed)
    second = filled((nbytes,), torch.uint8, seed=seed + 1)
    with sim.policy(policy, seed=seed):
        tensor = first.to("cuda")
        assert tensor_data(tensor) == memoryview(first.numpy())
        pinned = second.pin_memory()
        tensor.copy_(pinned, non_blocking=True)  # has not run when tensor_data is called
        view = tensor_data(tensor)
        assert view == memoryview(second.numpy())
        tensor.fill_(0)
        sim.run_all()
        assert view == memoryview(second.numpy())


@pytest.mark.sim
def test_it_comes_in_blocks_through_three_megabytes_and_synchronizes_nothing():
    tensor = torch.arange(10 * MiB + 1, dtype=torch.uint8).to("cuda")
    tensor_data(tensor)
    torch.cuda.synchronize()
    before = pinned_stats()
    with sim.record() as calls:
        view = tensor_data(tensor)
    copies = [call for call in calls if call.name.startswith("cudaMemcpy")]
    assert [call.nbytes for call in copies] == 10 * [MiB] + [1]
    assert {call.kind for call in copies} == {"DeviceToHost"}
    names = Counter(call.name for call in calls)
    assert names["cudaEventRecord"] == len(copies)
    assert not any("Synchronize" in name or "Malloc" in name for name in names)
    after = pinned_stats()
    assert after.allocated == before.allocated
    assert after.in_use == before.in_use
    assert view.nbytes == 10 * MiB + 1  # and is none of the pinned memory


@pytest.mark.sim
def test_of_a_strided_tensor_only_its_bytes_are_brought():
    tensor = torch.arange(MiB, dtype=torch.int32).reshape(1024, 1024).to("cuda")[:, ::4].t()
    tensor_data(tensor)
    torch.cuda.synchronize()
    with sim.record() as calls:
        view = tensor_data(tensor)
    brought = [call.nbytes for call in calls if call.kind == "DeviceToHost"]
    assert sum(brought) == tensor.nbytes == view.nbytes
    names = Counter(call.name for call in calls)
    assert names["cudaLaunchKernel"] + names["cudaMemcpy2DAsync"] == 1  # gathered there
    assert not any("Synchronize" in name for name in names)


@pytest.mark.sim
def test_it_runs_on_the_current_stream_and_waits_for_no_other():
    tensor = torch.arange(3 * MiB, dtype=torch.uint8).to("cuda")
    other = torch.full((1000,), 3, device="cuda")
    torch.cuda.synchronize()
    side, stalled = torch.cuda.Stream(), torch.cuda.Stream()
    with sim.hold(stalled.cuda_stream):
        with torch.cuda.stream(stalled):
            other.fill_(4)  # does not run
        with torch.cuda.stream(side), sim.record() as calls:
            view = tensor_data(tensor)
        assert sim.pending() == 1
    work = [call for call in calls if call.name.startswith(("cudaMemcpy", "cudaEventRecord"))]
    assert {call.stream for call in work} == {side.cuda_stream}
    assert view == memoryview(tensor.cpu().numpy())


@pytest.mark.sim
def test_on_every_device_and_the_current_one_stays():
    tensor = filled((1000, 300), torch.int32)
    for index in range(torch.cuda.device_count()):
        moved = tensor.to(f"cuda:{index}")
        assert bytes(tensor_data(moved)) == reference_bytes(tensor)
        assert bytes(tensor_data(moved.t())) == reference_bytes(tensor.t())
        assert torch.cuda.current_device() == 0


def outcome(tensor: torch.Tensor, expected: bytes) -> str:
    """The message of the error; empty where there was none and the bytes are right."""
    try:
        data = tensor_data(tensor)
    except RuntimeError as error:
        return str(error)
    assert bytes(data) == expected
    return ""


@pytest.mark.sim
@pytest.mark.parametrize("policy", ["eager", "lazy"])
@pytest.mark.parametrize("strided", [False, True])
def test_a_failure_of_any_call_leaves_nothing_half_done(policy, strided):
    """Each call that this package makes fails in turn, once."""
    source = filled((1024, 1280), torch.uint8)
    tensor = source.to("cuda")
    tensor, source = (tensor.t(), source.t()) if strided else (tensor, source)
    expected = reference_bytes(source)
    tensor_data(tensor)
    with sim.policy(policy):
        with sim.record() as calls:
            tensor_data(tensor)
        places = Counter(call.name for call in calls)
        assert places["cudaMemcpyAsync"] == 5
        failed = 0
        before = pinned_stats()
        for name, count in places.items():
            for nth in range(1, min(count, 6) + 1):
                with sim.fault(name, nth=nth, code=1, library=_C.__file__) as fault:
                    message = outcome(tensor, expected)
                if not fault.happened:  # PyTorch makes the other calls
                    assert message == ""
                    break
                assert message == "" or name in message or "invalid argument" in message
                failed += message != ""
                sim.run_all()
                assert bytes(tensor_data(tensor)) == expected, (name, nth)
                stats = pinned_stats()
                assert (stats.in_use, stats.lost) == (before.in_use, 0), (name, nth)
                assert stats.allocated <= before.allocated + 3 * MiB, (name, nth)
                torch.cuda.synchronize()  # no error is left for PyTorch to find
        assert failed > 10
    assert not sim.reports()


@pytest.mark.sim
def test_blocks_of_a_failed_download_are_not_reused_under_their_copies(seed):
    tensor = torch.full((MiB,), 7, dtype=torch.uint8, device="cuda")
    tensor_data(tensor)
    torch.cuda.synchronize()
    with sim.policy("lazy", seed=seed):
        with sim.fault("cudaMemcpyAsync", nth=2, code=1), pytest.raises(RuntimeError):
            tensor_data(tensor)
        assert sim.pending() > 0  # the first block's copy
        stats = pinned_stats()
        assert stats.in_flight > 0
        sim.run_all()
        assert pinned_stats().in_flight == 0


@pytest.mark.cuda
def test_under_capture_a_device_tensor_is_refused_and_the_capture_goes_on():
    tensor = torch.ones(10, device="cuda")
    tensor_data(tensor)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.fill_(2.0)
        with pytest.raises(RuntimeError, match="captures a CUDA graph"):
            tensor_data(tensor)
    graph.replay()
    assert bytes(tensor_data(tensor)) == reference_bytes(torch.full((10,), 2.0))


@pytest.mark.sim
def test_the_gil_is_released_while_a_device_tensor_comes():
    stream = torch.cuda.Stream()
    tensor = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    got: list[bytes] = []

    def work() -> None:
        with torch.cuda.stream(stream):
            got.append(bytes(tensor_data(tensor)))

    with sim.hold(stream.cuda_stream):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()  # waits for the stream, and this thread runs
    thread.join(30)
    assert got == [reference_bytes(torch.ones(1000))]


@pytest.mark.sim
def test_ctrl_c_ends_the_wait_and_leaves_nothing():
    stream = torch.cuda.Stream()
    tensor = torch.ones(5 * MiB, device="cuda")
    torch.cuda.synchronize()
    before = pinned_stats()
    with sim.hold(stream.cuda_stream), torch.cuda.stream(stream):
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            tensor_data(tensor)
        timer.join()
        stats = pinned_stats()
        assert stats.in_use == before.in_use
        assert stats.in_flight == 3 * MiB  # the copies are still to come
    sim.run_all()
    assert pinned_stats().in_flight == 0
    assert bytes(tensor_data(tensor)[:4]) == reference_bytes(torch.ones(1))


@pytest.mark.sim
def test_threads_bring_tensors_at_once():
    tensors = [filled((3 * MiB // 2,), torch.uint8, seed=i).to("cuda") for i in range(4)]
    expected = [reference_bytes(tensor.cpu()) for tensor in tensors]
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                if bytes(tensor_data(tensors[i])) != expected[i]:
                    wrong.append(i)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
