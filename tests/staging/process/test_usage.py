"""A usage record is delivered when it was asked for, whole, and never at anyone's expense."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import http.server
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from staging.process import usage
from staging.process.usage import UsageContext, collect_usage_stats, report_usage_stats


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in (
        "DO_NOT_TRACK",
        "STAGING_NO_USAGE_STATS",
        "STAGING_USAGE_STATS_URL",
        "STAGING_USAGE_STATS_PATH",
        "http_proxy",
        "HTTP_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)


class Backend(enum.Enum):
    FLASH = 1


class Dtype:
    def __str__(self):
        return "torch.bfloat16"


def full_config():
    return SimpleNamespace(
        model_config=SimpleNamespace(
            architectures=["LlamaForCausalLM"],
            dtype=Dtype(),
            quantization=None,
            enforce_eager=False,
            model="/secret/path/to/model",
            hf_config=SimpleNamespace(num_local_experts=8, num_experts_per_tok=2),
        ),
        cache_config=SimpleNamespace(block_size=16, cache_dtype="auto", gpu_memory_utilization=0.9),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=4, pipeline_parallel_size=1, data_parallel_size=2
        ),
        attention_config=SimpleNamespace(backend=Backend.FLASH),
        compilation_config={"mode": 3},
        speculative_config=SimpleNamespace(method="ngram", num_speculative_tokens=4),
        lora_config=None,
    )


def deliver(config=None, **kwargs):
    thread = report_usage_stats(full_config() if config is None else config, **kwargs)
    assert thread is not None
    thread.join(20)
    assert not thread.is_alive()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- off ----------------------------------------------------------------------------------


def test_it_is_off_unless_a_place_is_configured():
    assert report_usage_stats(full_config()) is None


@pytest.mark.parametrize("name", ["DO_NOT_TRACK", "STAGING_NO_USAGE_STATS"])
@pytest.mark.parametrize("value", ["1", "true", "TRUE", "yes", "on", " On "])
def test_an_opt_out_wins_over_everything(monkeypatch, tmp_path, name, value):
    monkeypatch.setenv("STAGING_USAGE_STATS_PATH", str(tmp_path / "usage.jsonl"))
    monkeypatch.setenv("STAGING_USAGE_STATS_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv(name, value)
    assert report_usage_stats(full_config()) is None
    assert not (tmp_path / "usage.jsonl").exists()


@pytest.mark.parametrize("value", ["", "0", "false", "no", "off"])
def test_an_opt_out_set_to_a_false_value_opts_nobody_out(monkeypatch, tmp_path, value):
    monkeypatch.setenv("STAGING_USAGE_STATS_PATH", str(tmp_path / "usage.jsonl"))
    monkeypatch.setenv("DO_NOT_TRACK", value)
    deliver()
    assert len(lines(tmp_path / "usage.jsonl")) == 1


# -- what is collected --------------------------------------------------------------------


def test_the_shape_of_a_deployment_is_collected_and_nothing_else():
    assert collect_usage_stats(full_config()) == {
        "architecture": "LlamaForCausalLM",
        "dtype": "torch.bfloat16",
        "enforce_eager": False,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "block_size": 16,
        "kv_cache_dtype": "auto",
        "gpu_memory_utilization": 0.9,
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 2,
        "attention_backend": "FLASH",
        "compilation_mode": 3,
        "speculative_method": "ngram",
        "num_speculative_tokens": 4,
        "speculative_decoding": True,
        "enable_lora": False,
    }


@pytest.mark.parametrize("config", [None, object(), {}, 7, SimpleNamespace(model_config=None)])
def test_what_a_configuration_lacks_is_left_out(config):
    assert collect_usage_stats(config) == {}


def test_a_configuration_whose_properties_raise_is_left_out():
    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(f"no {name} for you")

    class Unprintable:
        def __str__(self):
            raise ValueError

        def __bool__(self):
            raise ValueError

    assert collect_usage_stats(Hostile()) == {}
    config = SimpleNamespace(
        model_config=SimpleNamespace(dtype=Unprintable()), lora_config=Unprintable()
    )
    assert collect_usage_stats(config) == {}


def test_numbers_that_json_cannot_hold_are_left_out():
    config = SimpleNamespace(cache_config=SimpleNamespace(gpu_memory_utilization=float("nan")))
    assert collect_usage_stats(config) == {}


# -- to a file ----------------------------------------------------------------------------


def test_a_record_is_one_json_line_and_records_are_appended(monkeypatch, tmp_path):
    path = tmp_path / "usage.jsonl"
    monkeypatch.setenv("STAGING_USAGE_STATS_PATH", str(path))
    deliver()
    deliver(usage_context=UsageContext.API_SERVER)
    first, second = lines(path)
    assert first["context"] == "ENGINE_CONTEXT"
    assert second["context"] == "API_SERVER"
    assert first["tensor_parallel_size"] == 4
    assert path.read_bytes().endswith(b"}\n")
    assert path.stat().st_mode & 0o077 == 0


def test_a_line_that_another_writer_left_torn_does_not_swallow_a_record(monkeypatch, tmp_path):
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b'{"torn": ')
    monkeypatch.setenv("STAGING_USAGE_STATS_PATH", str(path))
    deliver()
    torn, record = path.read_text().splitlines()
    assert torn == '{"torn": '
    assert json.loads(record)["context"] == "ENGINE_CONTEXT"


def test_records_of_many_writers_stay_whole(monkeypatch, tmp_path):
    path = tmp_path / "usage.jsonl"
    monkeypatch.setenv("STAGING_USAGE_STATS_PATH", str(path))
    threads = [report_usage_stats(full_config()) for _ in range(40)]
    for thread in threads:
        thread.join(20)
    assert len(lines(path)) == 40


def test_a_record_that_does_not_fit_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "usage.jsonl"
    program = (
        "import resource, sys\n"
        "from staging.process.usage import report_usage_stats\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        "report_usage_stats({'model_config': {'dtype': 'x' * 200}}).join(20)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    path.write_bytes(b'{"whole": 1}\n')
    environment = {**os.environ, "STAGING_USAGE_STATS_PATH": str(path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    assert path.read_bytes() == b'{"whole": 1}\n'


def test_a_file_that_cannot_be_written_is_a_debug_line(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("STAGING_USAGE_STATS_PATH", str(tmp_path / "absent" / "usage.jsonl"))
    with caplog.at_level(logging.DEBUG, logger="staging"):
        deliver()
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "FileNotFoundError" in record.getMessage()


def test_a_file_that_another_holds_locked_is_given_up_in_time(monkeypatch, tmp_path, caplog):
    path = tmp_path / "usage.jsonl"
    monkeypatch.setenv("STAGING_USAGE_STATS_PATH", str(path))
    monkeypatch.setattr(usage, "TIME_LIMIT_S", 0.2)
    with path.open("w") as held, caplog.at_level(logging.DEBUG, logger="staging"):
        fcntl.flock(held, fcntl.LOCK_EX)
        deliver()
    assert path.read_bytes() == b""
    assert "TimeoutError" in caplog.text


def test_a_pipe_that_nobody_reads_does_not_hold_the_thread(monkeypatch, tmp_path):
    path = tmp_path / "usage.fifo"
    os.mkfifo(path)
    monkeypatch.setenv("STAGING_USAGE_STATS_PATH", str(path))
    deliver()


# -- to an endpoint -----------------------------------------------------------------------


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Keeps what it is sent; answers 204, or redirects where it is told to."""

    def do_POST(self):
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.paths.append(self.path)
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def endpoint(status=204):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.bodies, server.paths, server.status = [], [], status
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/v1/usage"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_record_is_posted(monkeypatch):
    with endpoint() as (server, url):
        monkeypatch.setenv("STAGING_USAGE_STATS_URL", url)
        deliver()
    (body,) = server.bodies
    assert json.loads(body)["architecture"] == "LlamaForCausalLM"


def test_a_redirect_is_not_followed(monkeypatch, caplog):
    with endpoint(status=302) as (server, url), caplog.at_level(logging.DEBUG, logger="staging"):
        monkeypatch.setenv("STAGING_USAGE_STATS_URL", url)
        deliver()
    assert server.paths == ["/v1/usage"]
    assert "HTTPError (302)" in caplog.text


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://h/x", "nonsense", "http://[::1"])
def test_an_endpoint_that_is_not_http_is_a_debug_line(monkeypatch, caplog, url):
    monkeypatch.setenv("STAGING_USAGE_STATS_URL", url)
    with caplog.at_level(logging.DEBUG, logger="staging"):
        deliver()
    assert "not sent" in caplog.text


def test_a_token_in_the_endpoint_is_never_logged(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        port = refusing.getsockname()[1]
    monkeypatch.setenv(
        "STAGING_USAGE_STATS_URL", f"http://u:hunter2@127.0.0.1:{port}/?token=hunter2"
    )
    with caplog.at_level(logging.DEBUG):
        deliver()
    assert "not sent" in caplog.text
    assert "hunter2" not in caplog.text


def test_an_endpoint_that_trickles_its_answer_is_given_up_in_time(monkeypatch, caplog):
    # Each byte comes well within a socket's timeout; only the whole is too slow.
    monkeypatch.setattr(usage, "TIME_LIMIT_S", 0.5)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def trickle():
            with contextlib.suppress(OSError), listening.accept()[0] as peer:
                peer.sendall(b"HTTP/1.1 200 ")
                while not stop.wait(0.02):
                    peer.sendall(b"y")

        thread = threading.Thread(target=trickle)
        thread.start()
        monkeypatch.setenv(
            "STAGING_USAGE_STATS_URL", f"http://127.0.0.1:{listening.getsockname()[1]}/"
        )
        start = time.monotonic()
        with caplog.at_level(logging.DEBUG, logger="staging"):
            deliver()
        took = time.monotonic() - start
        stop.set()
        thread.join()
    assert took < 3 * 0.5
    assert "not sent" in caplog.text


def test_a_process_that_exits_does_not_wait_for_a_silent_endpoint():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = {
            **os.environ,
            "STAGING_USAGE_STATS_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/",
        }
        program = (
            "import time, threading\n"
            "from staging.process.usage import report_usage_stats\n"
            "thread = report_usage_stats({})\n"
            "assert thread.daemon and thread.is_alive()\n"
        )
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
        assert time.monotonic() - start < usage.TIME_LIMIT_S
