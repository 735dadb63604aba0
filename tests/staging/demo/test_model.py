"""The stand-in for the model keeps a GPU busy. No simulated device multiplies matrices."""

from __future__ import annotations

import pytest
import torch

from staging import sim
from staging.demo.model import Model


@pytest.mark.cuda
@pytest.mark.skipif(
    sim.active() or not torch.cuda.is_available(), reason="needs a GPU, not a simulated device"
)
def test_a_step_enqueues_work_that_outlasts_the_call():
    model = Model(torch.device("cuda"), step_ms=200.0)
    model.forward()
    done = torch.cuda.Event()
    done.record()
    assert not done.query(), "the work of 200 ms was over when the call returned"
    done.synchronize()
