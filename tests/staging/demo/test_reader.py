"""The reader finds every byte that differs, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from staging.demo.inputs import InputSpec
from staging.demo.reader import DeviceReader

SPECS = (
    InputSpec("ids", np.dtype(np.int32), (7,)),
    InputSpec("table", np.dtype(np.int64), (3, 5)),
    InputSpec("scale", np.dtype(np.float32), (3,)),
)


class Device:
    """Host and device arrays with the same contents."""

    def __init__(self, steps=4):
        random = np.random.default_rng(0)
        self.host = {s.name: random.integers(1, 99, s.shape).astype(s.dtype) for s in SPECS}
        self.arrays = {n: torch.from_numpy(array.copy()) for n, array in self.host.items()}
        self.reader = DeviceReader(SPECS, self.arrays, steps=steps)

    def record(self, **used):
        self.reader.record(self.host, {spec.name: spec.shape[0] for spec in SPECS} | used)


def test_equal_steps_have_nothing_wrong():
    device = Device()
    device.record()
    device.record(ids=1)
    found = device.reader.check()
    assert (found.checked_steps, found.wrong_steps, found.wrong_bytes) == (2, 0, 0)
    assert found.checked_bytes == (7 * 4 + 3 * 5 * 8 + 3 * 4) + (4 + 3 * 5 * 8 + 3 * 4)
    assert found.first is None


def test_one_wrong_bit_is_found_and_named():
    device = Device()
    device.record()
    device.host["table"][1, 2] ^= 1 << 40
    device.record()
    found = device.reader.check()
    assert (found.checked_steps, found.wrong_steps, found.wrong_bytes) == (2, 1, 1)
    assert found.wrong_inputs == {"table": 1}
    assert (found.first.step, found.first.input, found.first.index) == (1, "table", 7)
    meant, read = device.host["table"].flatten(), device.arrays["table"].flatten()
    assert list(found.first.meant) == meant[7:].tolist()
    assert list(found.first.read) == read[7:].tolist()


def test_what_a_step_does_not_use_may_differ():
    device = Device()
    device.host["ids"][3:] = -1
    device.record(ids=3)
    assert device.reader.check().wrong_steps == 0
    device.record(ids=4)
    assert device.reader.check().wrong_inputs == {"ids": 1}


def test_a_step_is_compared_as_it_was_when_it_was_recorded():
    device = Device()
    device.record()
    device.host["scale"][:] = 0
    device.arrays["scale"].zero_()
    assert device.reader.check().wrong_steps == 0


def test_steps_count_on_over_several_checks():
    device = Device(steps=2)
    for _ in range(3):
        device.record()
        device.reader.check()
    device.arrays["ids"][6] += 1
    device.record()
    device.record()
    found = device.reader.check()
    assert (found.checked_steps, found.wrong_steps, found.first.step) == (5, 2, 3)
    assert found.wrong_bytes == 2


def test_nan_is_compared_by_its_bytes():
    device = Device()
    device.host["scale"][0] = device.arrays["scale"][0] = float("nan")
    device.record()
    assert device.reader.check().wrong_steps == 0


def test_a_full_log_refuses_a_step_rather_than_lose_one():
    device = Device(steps=1)
    device.record()
    assert device.reader.full
    with pytest.raises(RuntimeError, match=r"holds 1 steps; check\(\) empties it"):
        device.record()
    device.reader.check()
    assert not device.reader.full
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Device(steps=0)
