"""API servers are started as their users know it, or not at all."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import types

import process_targets
import pytest
import zmq

from staging.process import (
    APIServerProcessManager,
    ZmqListener,
    get_engine_client_zmq_addr,
    wait_for_completion_or_failure,
)
from staging.process.api_servers import COUNTERS_PER_SERVER, UNREPORTED_LOAD

ROOT = pathlib.Path(__file__).resolve().parents[3]
SUPPORT = pathlib.Path(__file__).resolve().parent / "support"


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch, household):
    monkeypatch.setenv("STAGING_RPC_BASE_PATH", str(tmp_path))
    return tmp_path


def listeners(count):
    return [ZmqListener.bind(get_engine_client_zmq_addr(True, "")) for _ in range(count)]


def managed(count, target=process_targets.server, args=None, **options):
    for name in ("input_listeners", "output_listeners"):
        if name not in options:
            options[name] = listeners(count)
    return APIServerProcessManager(
        **{
            "listen_address": "http://localhost:8000",
            "sock": None,
            "args": args,
            "num_servers": count,
            "target_server_fn": target,
            **options,
        }
    )


def test_each_server_is_told_what_it_needs(tmp_path):
    inputs, outputs = listeners(2), listeners(2)
    with socket.socket() as sock:
        manager = managed(
            2,
            process_targets.dump_config,
            str(tmp_path),
            sock=sock,  # not even bound
            input_listeners=inputs,
            output_listeners=outputs,
            stats_update_address="tcp://h:1",
        )
        assert [process.name for process in manager.processes] == ["ApiServer_0", "ApiServer_1"]
        wait_for_completion_or_failure(manager)
    for i in range(2):
        told = json.loads((tmp_path / f"config-{i}").read_text())
        assert told == {
            "listen_address": "http://localhost:8000",
            "sock": "socket",
            "args": str(tmp_path),
            "input_address": inputs[i].address,
            "output_address": outputs[i].address,
            "input_listener": inputs[i].address.removeprefix("ipc://"),
            "output_listener": outputs[i].address.removeprefix("ipc://"),
            "client_count": 2,
            "client_index": i,
            "stats_update_address": "tcp://h:1",
            "api_server_loads": [UNREPORTED_LOAD] * 2,
        }
    manager.shutdown()


def test_what_was_not_given_is_not_told(tmp_path):
    manager = managed(1, process_targets.dump_config, str(tmp_path))
    wait_for_completion_or_failure(manager)
    told = json.loads((tmp_path / "config-0").read_text())
    assert not {"stats_update_address", "tensor_queue", "api_server_loads"} & set(told)
    assert told["client_count"] == 1
    manager.shutdown()


@pytest.mark.parametrize(("num_servers", "limit"), [(1, 5), (2, None), (3, 5)])
def test_admission_counters_come_with_a_limit_on_queued_requests(tmp_path, num_servers, limit):
    args = types.SimpleNamespace(max_num_queued_reqs=limit, folder=str(tmp_path))
    manager = managed(num_servers, process_targets.dump_config, args)
    wait_for_completion_or_failure(manager)
    told = json.loads((tmp_path / "config-0").read_text())
    if num_servers > 1 and limit is not None:
        assert told["mp_admission_counters"] == [0] * (num_servers * COUNTERS_PER_SERVER)
    else:
        assert "mp_admission_counters" not in told
    manager.shutdown()


def test_servers_share_their_loads(tmp_path):
    manager = managed(3, process_targets.share_load, str(tmp_path))
    wait_for_completion_or_failure(manager)
    seen = [json.loads((tmp_path / f"loads-{i}").read_text()) for i in range(3)]
    assert seen == [[100, 101, 102]] * 3
    manager.shutdown()


def test_a_queue_can_be_handed_over(tmp_path):
    import multiprocessing

    queue = multiprocessing.get_context("spawn").Queue()
    manager = managed(2, process_targets.put_index, tensor_queue=queue)
    assert {queue.get(timeout=20), queue.get(timeout=20)} == {0, 1}
    wait_for_completion_or_failure(manager)
    manager.shutdown()
    queue.close()
    queue.join_thread()


def test_the_parents_copies_are_closed_and_the_files_stay_until_the_end(tmp_path):
    inputs, outputs = listeners(2), listeners(2)
    args = {"modes": ["sleep=1000"], "folder": str(tmp_path)}
    manager = managed(2, args=args, input_listeners=inputs, output_listeners=outputs)
    paths = [pathlib.Path(x.address.removeprefix("ipc://")) for x in inputs + outputs]
    assert all(listener.socket.fileno() == -1 for listener in inputs + outputs)
    assert all(path.is_socket() for path in paths)
    manager.shutdown()
    assert not any(path.exists() for path in paths)


@pytest.mark.parametrize("address", ["ipc", "tcp://127.0.0.1:0"])
def test_a_server_adopts_its_listeners_and_is_reached_through_them(address):
    ends = [
        ZmqListener.bind(get_engine_client_zmq_addr(True, "") if address == "ipc" else address)
        for _ in range(2)
    ]
    manager = managed(
        1, process_targets.echo_once, input_listeners=ends[:1], output_listeners=ends[1:]
    )
    with zmq.Context() as context:
        dealer, push = context.socket(zmq.DEALER), context.socket(zmq.PUSH)
        dealer.rcvtimeo = 20_000
        dealer.connect(ends[0].address)
        push.connect(ends[1].address)
        dealer.send(b"input")
        push.send(b"output")
        assert dealer.recv() == b"input output"
        dealer.close()
        push.close()
    wait_for_completion_or_failure(manager)
    manager.shutdown()


class Started(Exception):
    pass


def refuse_to_start(*args, **kwargs):
    raise Started


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"num_servers": 0}, ValueError, "num_servers is 0"),
        ({"num_servers": True}, ValueError, "num_servers is True"),
        ({"num_servers": 3}, ValueError, "input_listeners has 2 listeners for 3 processes"),
        ({"output_listeners": []}, ValueError, "output_listeners has 0 listeners"),
        ({"input_listeners": ["ipc:///x", "ipc:///y"]}, TypeError, "has no 'address'"),
    ],
)
def test_arguments_are_checked_before_anything_starts(
    tmp_path, monkeypatch, options, error, reason
):
    monkeypatch.setattr("staging.process.children.ChildProcess.start", refuse_to_start)
    with pytest.raises(error, match=reason):
        managed(2, **options)
    assert not [path for path in tmp_path.iterdir() if path.is_socket()]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_start_that_fails_leaves_neither_servers_nor_listeners(tmp_path, monkeypatch, failing):
    from staging.process.children import ChildProcess

    inputs, outputs = listeners(2), listeners(2)
    really_start = ChildProcess.start
    started = []

    def start(self):
        if len(started) == failing:
            raise OSError("no more processes")
        really_start(self)
        started.append(self)

    monkeypatch.setattr(ChildProcess, "start", start)
    args = {"modes": ["ignore sleep=1000"], "folder": str(tmp_path)}
    with pytest.raises(OSError, match="no more processes"):
        managed(2, args=args, input_listeners=inputs, output_listeners=outputs)
    assert not any(process.is_alive() for process in started)
    assert all(listener.socket.fileno() == -1 for listener in inputs + outputs)
    assert not [path for path in tmp_path.iterdir() if path.is_socket()]


def test_a_target_that_cannot_be_pickled_leaves_nothing(tmp_path):
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        managed(2, lambda *args: None)
    assert not [path for path in tmp_path.iterdir() if path.is_socket()]


def test_shutdown_can_be_repeated(tmp_path):
    manager = managed(2, args={"modes": ["ready sleep=1000"], "folder": str(tmp_path)})
    first = manager.shutdown()
    begin = time.monotonic()
    second = manager.shutdown()
    assert time.monotonic() - begin < 1
    assert {r.outcome for r in first.processes} == {"terminated"}
    assert {r.outcome for r in second.processes} == {"ended before"}


def test_an_exit_without_a_shutdown_ends_the_servers(tmp_path, household):
    (tmp_path / "program.py").write_text(
        f"""
from staging.process import APIServerProcessManager, ZmqListener
import process_targets
if __name__ == "__main__":
    manager = APIServerProcessManager(
        "", None, {{"modes": ["ignore ready sleep=1000"], "folder": {str(tmp_path)!r}}}, 1,
        [ZmqListener.bind("ipc://{tmp_path}/a")], [ZmqListener.bind("ipc://{tmp_path}/b")],
        process_targets.server,
    )
"""
    )
    result = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        env={"PYTHONPATH": f"{ROOT}:{SUPPORT}", "PATH": os.environ["PATH"]},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert not [path for path in tmp_path.iterdir() if path.is_socket()]
    household.expect_empty()
