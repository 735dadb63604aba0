"""Under a low limit of pinned memory: fewer and smaller blocks, not an error."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import staging  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore::staging.SlowPathWarning")]

LIMITS = [64 << 10, 256 << 10, 1 << 20, 2 << 20]


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape)


def read_a_device_tensor() -> None:
    values = numbers(1_000_003)
    on_device = values.cuda()
    data = values.numpy().tobytes()
    assert bytes(staging.tensor_data(on_device)) == data
    digest = staging.tensor_digest(on_device, "sha256", framed=False)
    assert digest == hashlib.sha256(data).digest()
    assert staging.tensor_digest(on_device) == staging.tensor_digest(values)


def copy_slices_up() -> None:
    values = numbers(700, 1000)
    for source, columns in [
        (values, slice(None)),
        (values.t(), slice(None)),
        (values[:, ::2], slice(None, None, 2)),
        (values.view(1, -1), slice(None)),
    ]:
        for snapshot in (False, True):
            for parts in (1, 2):
                shape = len(source), source.shape[1] * (columns.step or 1)
                whole = torch.zeros(shape, dtype=torch.int32, device="cuda")
                target = whole[:, columns]
                step = -(-len(source) // parts)
                pairs = list(zip(source.split(step), target.split(step), strict=True))
                if parts == 1:
                    staging.copy_slice(source, target, len(source), snapshot=snapshot)
                else:
                    staging.copy_slices([(a, b, len(a)) for a, b in pairs], snapshot=snapshot)
                assert torch.equal(whole.cpu()[:, columns], source)
    many = [
        (values[i], torch.zeros(1000, dtype=torch.int32, device="cuda"), 1000) for i in range(700)
    ]
    staging.copy_slices(many)
    assert all(torch.equal(target.cpu(), source) for source, target, _ in many)


def copy_slices_down() -> None:
    values = numbers(700, 1000)
    on_device = values.cuda()
    for source, wanted in [
        (on_device, values),
        (on_device[:, ::2], values[:, ::2]),
        (on_device[:, :900], values[:, :900]),
    ]:
        target = torch.zeros(*wanted.shape[:-1], 1000, dtype=torch.int32)[..., : wanted.shape[-1]]
        staging.copy_slice(source, target, len(source))
        assert torch.equal(target, wanted)
        target.zero_()
        half = len(source) // 2
        staging.copy_slices([(source[:half], target[:half], half), (source[half:], target[half:],
                                                                    half)])  # fmt: skip
        assert torch.equal(target, wanted)
    many = [(on_device[i], torch.zeros(1000, dtype=torch.int32), 1000) for i in range(700)]
    staging.copy_slices(many)
    assert all(torch.equal(target, values[i]) for i, (_, target, _) in enumerate(many))


def stage_in_buffers() -> None:
    buffer = staging.CpuGpuBuffer(2000, dtype=torch.int32, device="cuda")
    group = staging.StagingGroup("cuda", {"a": (500, torch.int32), "b": (500, torch.int32)})
    table = staging.StagedRows(8, 500, torch.int32, "cuda")
    for step in range(1, 50):
        buffer.np[:] = step
        buffer.copy_to_gpu()
        group["b"].np[:] = step
        group.copy_to_gpu()
        table.stage(step % 8, 0, torch.full((500,), step, dtype=torch.int32))
        table.apply()
        assert buffer.fetch().result().eq(step).all()
        assert group["b"].fetch().result().eq(step).all()
        assert table.gpu[step % 8].cpu().eq(step).all()


WAYS = [read_a_device_tensor, copy_slices_up, copy_slices_down, stage_in_buffers]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_low_limit_is_lived_with(way, limit):
    """In a process of its own: what this one holds would count."""
    program = f"""
import staging, test_pinned_limits as ways
staging.set_pinned_limit({limit})
ways.{way.__name__}()
assert staging.pinned_stats().peak <= {limit}
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_where_no_block_fits_the_limit_is_named():
    program = """
import staging, torch
on_device = torch.ones(1 << 20, dtype=torch.uint8).cuda()
staging.set_pinned_limit(64 << 10)
held = staging.pinned_empty(64 << 10, dtype=torch.uint8)
for read in (
    lambda: staging.tensor_data(on_device),
    lambda: staging.tensor_digest(on_device, "sha256"),
    lambda: staging.copy_slice(torch.ones(1 << 20, dtype=torch.uint8), on_device, 1 << 20),
    lambda: staging.copy_slice(
        on_device[::2], torch.ones(1 << 20, dtype=torch.uint8)[::2], 1 << 19
    ),
):
    try:
        read()
    except staging.OutOfMemory as error:
        assert "set_pinned_limit" in str(error), error
    else:
        raise AssertionError(read)
del held
assert len(staging.tensor_data(on_device)) == 1 << 20
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
