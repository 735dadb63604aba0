"""Every stager keeps to the interface, and brings the used rows to the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from staging.demo.inputs import input_specs
from staging.demo.request_table import Limits
from staging.demo.stagers import STAGERS, torch_dtype

SPECS = input_specs(Limits(requests=5, step_tokens=8, request_tokens=20))


@pytest.fixture(params=STAGERS, ids=lambda stager: stager.name)
def stager(request):
    return request.param(SPECS, torch.device("cpu"))


def test_names_are_unique_and_the_plain_one_comes_first():
    names = [stager.name for stager in STAGERS]
    assert len(set(names)) == len(names)
    assert names[0] == "plain"


def test_host_and_device_arrays_are_as_specified(stager):
    host = stager.host()
    assert set(host) == set(stager.device) == {spec.name for spec in SPECS}
    for spec in SPECS:
        assert host[spec.name].dtype == spec.dtype
        assert host[spec.name].shape == spec.shape == tuple(stager.device[spec.name].shape)
        assert stager.device[spec.name].dtype == torch_dtype(spec)
        assert not host[spec.name].any()


def test_staging_copies_the_used_rows_and_no_more(stager):
    random = np.random.default_rng(0)
    for array in stager.host().values():
        array[...] = random.integers(1, 99, array.shape)
    used = {spec.name: spec.shape[0] - 2 for spec in SPECS}
    stager.stage(used)
    for spec in SPECS:
        seen = stager.device[spec.name].numpy()
        rows = used[spec.name]
        np.testing.assert_array_equal(seen[:rows], stager.host()[spec.name][:rows], spec.name)
        assert not seen[rows:].any(), spec.name


def test_what_was_written_stays_in_the_host_arrays(stager):
    stager.host()["positions"][:3] = 4, 5, 6
    stager.stage({spec.name: 1 for spec in SPECS})
    assert stager.host()["positions"][:3].tolist() == [4, 5, 6]


def test_the_device_reads_the_same_tensors_in_every_step(stager):
    before = {name: tensor.data_ptr() for name, tensor in stager.device.items()}
    for _ in range(3):
        stager.stage({spec.name: 2 for spec in SPECS})
    assert {name: tensor.data_ptr() for name, tensor in stager.device.items()} == before
