"""The demo finds its device, or says why it cannot, and reruns itself only when it should."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from staging.demo import place
from staging.demo.place import NoDevice, find, rerun_over_simulated_device


@pytest.fixture
def executed(monkeypatch):
    """Pretend: no GPU, not simulated, libraries built. Records what would be executed."""
    calls = []
    monkeypatch.setattr(place.os, "execve", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(place.sim, "active", lambda: False)
    monkeypatch.setattr(place, "driver_has_device", lambda: False)
    monkeypatch.setattr(place.sim_cli, "environment", lambda **options: options)
    return calls


def pretend(monkeypatch, *, cuda_build=True, available=True, active=False, policy="lazy"):
    monkeypatch.setattr("staging.extension._C", SimpleNamespace(built_with_cuda=cuda_build))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some device")
    monkeypatch.setattr(place.sim, "active", lambda: active)
    monkeypatch.setattr(place.sim, "current_policy", lambda: (policy, 0))


def test_auto_without_a_gpu_runs_the_same_demo_over_the_simulated_device(executed, capsys):
    rerun_over_simulated_device("auto", ["--steps", "5", "file"], seed=3)
    command = [sys.executable, "-m", "staging", "demo", "--steps", "5", "file"]
    assert executed == [(sys.executable, command, {"policy": "lazy", "seed": 3})]
    assert "over the simulated device" in capsys.readouterr().err


def test_it_does_not_rerun_when_a_device_was_asked_for_or_is_there(executed, monkeypatch):
    for device in ("cuda", "cpu"):
        rerun_over_simulated_device(device, [], seed=0)
    monkeypatch.setattr(place, "driver_has_device", lambda: True)
    rerun_over_simulated_device("auto", [], seed=0)
    assert not executed


def test_it_does_not_rerun_when_it_already_did(executed, monkeypatch):
    monkeypatch.setattr(place.sim, "active", lambda: True)
    rerun_over_simulated_device("auto", [], seed=0)
    assert not executed


def test_without_the_libraries_it_says_that_it_stays_on_the_cpu(executed, monkeypatch, capsys):
    def environment(**options):
        raise FileNotFoundError("not built")

    monkeypatch.setattr(place.sim_cli, "environment", environment)
    rerun_over_simulated_device("auto", [], seed=0)
    assert not executed
    assert "no GPU and no simulated device here: on the CPU" in capsys.readouterr().err


def test_the_cpu_is_there_always_and_counts_no_calls():
    where = find("cpu")
    assert (where.kind, where.device, where.policy) == ("cpu", torch.device("cpu"), None)
    assert where.counters() == {}


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ({"available": False}, "torch finds no CUDA device"),
        ({"cuda_build": False}, "built without CUDA"),
    ],
    ids=["device", "build"],
)
def test_without_cuda_auto_is_the_cpu_and_cuda_an_error(monkeypatch, lacking, says):
    pretend(monkeypatch, **lacking)
    assert find("auto").kind == "cpu"
    with pytest.raises(NoDevice, match=f"--device cuda: .*{says}.*--device auto"):
        find("cuda")


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_the_current_cuda_device_is_taken(monkeypatch, requested):
    pretend(monkeypatch)
    where = find(requested)
    assert (where.kind, where.device) == ("cuda", torch.device("cuda", 1))
    assert (where.name, where.policy) == ("Some device", None)


def test_a_simulated_device_is_called_so(monkeypatch):
    pretend(monkeypatch, active=True, policy="random")
    where = find("auto")
    assert (where.kind, where.policy) == ("simulated", "random")
    assert where.counters is place.sim.counters


def test_a_policy_that_moves_nothing_is_refused(monkeypatch):
    pretend(monkeypatch, active=True, policy="null")
    where = find("cuda")
    with pytest.raises(NoDevice, match="policy is null, which executes no transfer"):
        where.require_transfers()
    pretend(monkeypatch, active=True, policy="eager")
    find("cuda").require_transfers()


def test_each_kind_of_place_says_what_its_times_are():
    caveats = {
        place.Place(torch.device("cpu"), kind, "name").caveat
        for kind in ("cpu", "cuda", "simulated")
    }
    assert len(caveats) == 3


def test_a_missing_driver_is_no_device(monkeypatch):
    def refuse(name):
        raise OSError(name)

    monkeypatch.setattr(place.ctypes, "CDLL", refuse)
    assert place.driver_has_device() is False


@pytest.mark.parametrize(("status", "count", "has"), [(0, 2, True), (0, 0, False), (100, 1, False)])
def test_a_driver_is_asked_for_its_devices(monkeypatch, status, count, has):
    class Driver:
        @staticmethod
        def cuInit(flags):
            return status

        @staticmethod
        def cuDeviceGetCount(pointer):
            pointer._obj.value = count
            return 0

    monkeypatch.setattr(place.ctypes, "CDLL", lambda name: Driver)
    assert place.driver_has_device() is has
