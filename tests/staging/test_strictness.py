"""Strict mode, and the warnings where it is off."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

import staging  # noqa: E402
from staging import CpuGpuBuffer, SlowPathWarning, StrictError, copy_slice, strict  # noqa: E402
from staging.extension import _C  # noqa: E402
from staging.strictness import report_slow_path  # noqa: E402


@pytest.fixture(autouse=True)
def _not_strict():
    with strict(False):
        yield


def test_is_a_switch_and_a_block():
    strict(True)
    assert _C.strict()
    with strict(False):
        assert not _C.strict()
        with strict():
            assert repr(strict(True)) == "strict(True)"
    assert _C.strict()


def test_in_strict_mode_a_slow_path_raises_and_names_the_argument():
    with strict(True), pytest.raises(StrictError, match=r"^tensor is odd; even it \(strict mode\)"):
        report_slow_path("tensor", "is odd", "even it")


def test_otherwise_it_warns_once_for_each_line():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            report_slow_path("tensor", "is slow", "hurry")
        report_slow_path("tensor", "is slow", "hurry")
        report_slow_path("tensor", "is large", "shrink it")
    assert [str(w.message) for w in seen] == [
        "tensor is slow; hurry",
        "tensor is slow; hurry",
        "tensor is large; shrink it",
    ]
    assert all(w.category is SlowPathWarning and w.filename == __file__ for w in seen)
    assert len({w.lineno for w in seen}) == 3


def test_a_warning_made_an_error_is_raised_every_time():
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        for _ in range(2):
            with pytest.raises(SlowPathWarning):
                report_slow_path("tensor", "is slow again", "hurry")


@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False), ("", False), (None, False)])
def test_the_environment_switches_it_on(value, on):
    env = {key: text for key, text in os.environ.items() if key != "STAGING_STRICT"}
    if value is not None:
        env["STAGING_STRICT"] = value
    code = "import staging; staging.strict; from staging.extension import _C; print(_C.strict())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert result.stdout.strip() == str(on)


SLOW = {
    "pageable source": (lambda: (torch.ones(4, 4), torch.zeros(4, 4, device="cuda")), "from_ten"),
    "pageable destination": (
        lambda: (torch.ones(4, 4, device="cuda"), torch.zeros(4, 4)),
        "to_tensor",
    ),
    "gap on the way down": (
        lambda: (torch.ones(4, 8).pin_memory()[:, :4], torch.zeros(4, 4, device="cuda")),
        "from_tensor and to_tensor",
    ),
    "gap on the way up": (
        lambda: (torch.ones(4, 8, device="cuda")[:, :4], torch.zeros(4, 4).pin_memory()),
        "to_tensor and from_tensor",
    ),
}


@pytest.mark.cuda
@pytest.mark.parametrize("case", SLOW)
def test_slow_copies_raise_before_anything_is_done_or_warn(case):
    make, argument = SLOW[case]
    from_tensor, to_tensor = make()
    with strict(True), pytest.raises(StrictError, match=f"^{argument}"):
        copy_slice(from_tensor, to_tensor, 3)
    assert not to_tensor.cpu().any()
    with pytest.warns(SlowPathWarning, match=f"^{argument}"):
        copy_slice(from_tensor, to_tensor, 3)
    torch.cuda.synchronize()
    assert to_tensor.cpu()[:3].all()


@pytest.mark.cuda
def test_quick_copies_say_nothing():
    pinned, gpu = torch.zeros(4, 4).pin_memory(), torch.zeros(4, 4, device="cuda")
    buffer = CpuGpuBuffer(4, dtype=torch.int32, device="cuda")
    unpinned = CpuGpuBuffer(4, dtype=torch.int32, device="cuda", pin_memory=False)
    with strict(True):
        copy_slice(pinned, gpu, 3)
        copy_slice(gpu, pinned, 3)
        copy_slice(gpu[:2], gpu[2:], 2)
        copy_slice(torch.zeros(4, 4), gpu, 3, snapshot=True)
        buffer.copy_to_gpu()
        buffer.copy_to_cpu()
        buffer.fetch().result()
        unpinned.copy_to_gpu()
        with unpinned.fill() as rows:
            rows[:] = 1


@pytest.mark.cuda
def test_a_copy_into_an_unpinned_buffer_is_synchronous_and_says_so():
    buffer = CpuGpuBuffer(4, dtype=torch.int32, device="cuda", pin_memory=False)
    buffer.gpu.fill_(3)
    with strict(True), pytest.raises(StrictError, match=r"^pin_memory=False"):
        buffer.copy_to_cpu()
    assert buffer.np.tolist() == [0] * 4
    with pytest.warns(SlowPathWarning, match=r"^pin_memory=False"):
        buffer.copy_to_cpu()
    assert buffer.np.tolist() == [3] * 4


def test_the_exceptions_are_of_the_package():
    assert staging.StrictError is _C.StrictError
    assert issubclass(staging.StrictError, RuntimeError)
    assert issubclass(staging.SlowPathWarning, UserWarning)
    assert issubclass(staging.StagingHint, UserWarning)
