"""A listener is bound before it is needed, adopted once, and leaves no file."""

from __future__ import annotations

import errno
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import threading

import pytest
import zmq

from staging.process import ZmqListener, get_engine_client_zmq_addr
from staging.process.guard import guard

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("STAGING_RPC_BASE_PATH", str(tmp_path))


def local():
    return get_engine_client_zmq_addr(True, "")


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


ADDRESSES = [
    "tcp://127.0.0.1:0",
    "tcp://localhost:0",
    "tcp://*:0",
    "ipc",
    pytest.param(
        "tcp://[::1]:0", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
    ),
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_is_sent_before_it_is_adopted_arrives(context, household, address):
    listener = ZmqListener.bind(local() if address == "ipc" else address)
    assert ":0" not in listener.address[-3:]
    peer = context.socket(zmq.DEALER)
    peer.ipv6 = True
    peer.connect(listener.address)
    peer.send(b"early")
    adopted = listener.adopt(context, zmq.ROUTER, linger=0, rcvtimeo=20_000)
    identity, message = adopted.recv_multipart()
    assert message == b"early"
    adopted.send_multipart([identity, b"answer"])
    assert peer.recv() == b"answer"
    assert listener.socket.fileno() == -1
    adopted.close()
    listener.cleanup()


def test_options_are_set_before_it_is_bound(context, household):
    listener = ZmqListener.bind("tcp://127.0.0.1:0")
    adopted = listener.adopt(context, zmq.ROUTER, linger=7, identity=b"me", rcvhwm=3)
    assert (adopted.linger, adopted.identity, adopted.rcvhwm) == (7, b"me", 3)
    adopted.close()


def test_a_bound_port_cannot_be_taken():
    listener = ZmqListener.bind("tcp://127.0.0.1:0")
    with pytest.raises(OSError, match="cannot listen on") as caught:
        ZmqListener.bind(listener.address)
    assert caught.value.errno == errno.EADDRINUSE
    assert listener.address in str(caught.value)
    listener.cleanup()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_a_fixed_port_can_be_bound_again_at_once():
    port = free_port()
    first = ZmqListener.bind(f"tcp://127.0.0.1:{port}")
    with socket.create_connection(("127.0.0.1", port)) as client:
        served, _ = first.socket.accept()
        served.close()  # this side closes first: the port is in TIME_WAIT
        client.recv(1)
    first.cleanup()
    again = ZmqListener.bind(f"tcp://127.0.0.1:{port}")
    again.cleanup()


def test_only_a_fixed_port_may_be_reused():
    for address, expected in (("tcp://127.0.0.1:0", 0), (f"tcp://127.0.0.1:{free_port()}", 1)):
        listener = ZmqListener.bind(address)
        reuse = listener.socket.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert bool(reuse) == bool(expected)
        listener.cleanup()


def test_a_stale_ipc_socket_is_replaced(household):
    address = local()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(address.removeprefix("ipc://"))
    listener = ZmqListener.bind(address)
    listener.cleanup()
    assert not os.path.exists(address.removeprefix("ipc://"))


def test_a_live_ipc_socket_is_an_error_and_stays(household):
    address = local()
    listener = ZmqListener.bind(address)
    with pytest.raises(OSError, match="in use") as caught:
        ZmqListener.bind(address)
    assert caught.value.errno == errno.EADDRINUSE
    # It is still guarded, and still removed by its maker.
    assert guard().warden_pid is not None
    listener.cleanup()
    assert not os.path.exists(address.removeprefix("ipc://"))


def test_a_live_ipc_socket_with_a_full_queue_is_not_stale(household):
    address = local()
    path = address.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as sock, socket.socket(socket.AF_UNIX) as client:
        sock.bind(path)
        sock.listen(0)
        client.connect(path)
        with pytest.raises(OSError, match="in use"):
            ZmqListener.bind(address)
        assert os.path.exists(path)


def test_a_file_that_is_no_socket_is_not_replaced(household, tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(OSError, match="in use"):
        ZmqListener.bind(f"ipc://{path}")
    assert path.read_text() == "precious"


def test_two_who_replace_a_stale_socket_do_not_get_in_each_others_way(household):
    for _ in range(20):
        address = local()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(address.removeprefix("ipc://"))
        results = []

        def bind(address=address, results=results):
            try:
                results.append(ZmqListener.bind(address))
            except OSError as error:
                results.append(error)

        threads = [threading.Thread(target=bind) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bound = [result for result in results if isinstance(result, ZmqListener)]
        assert len(bound) == 1
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(address.removeprefix("ipc://"))
        bound[0].cleanup()


def test_cleanup_leaves_anothers_file_alone(household, tmp_path):
    listener = ZmqListener.bind(local())
    path = pathlib.Path(listener.address.removeprefix("ipc://"))
    path.rename(tmp_path / "moved")
    other = ZmqListener.bind(listener.address)
    listener.cleanup()
    assert path.exists()
    other.cleanup()
    (tmp_path / "moved").unlink()


def test_cleanup_can_be_repeated(household):
    listener = ZmqListener.bind(local())
    listener.cleanup()
    other = ZmqListener.bind(listener.address)
    listener.cleanup()
    assert os.path.exists(other.address.removeprefix("ipc://"))
    other.cleanup()
    assert guard().warden_pid is None


def test_only_its_maker_removes_the_file(household):
    listener = ZmqListener.bind(local())
    path = listener.address.removeprefix("ipc://")
    pid = os.fork()
    if pid == 0:
        listener.cleanup()
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.path.exists(path)
    ZmqListener(listener.address, listener.socket.dup()).cleanup()
    assert os.path.exists(path)
    listener.cleanup()


def test_a_copy_in_another_process_owns_nothing():
    listener = ZmqListener("tcp://127.0.0.1:1", None)  # type: ignore[arg-type]
    assert listener.__reduce__() == (ZmqListener, ("tcp://127.0.0.1:1", None))
    assert pickle.loads(pickle.dumps(listener)).address == listener.address


@pytest.mark.parametrize("before", ["", "listener.close();"])
def test_a_file_does_not_outlive_a_process_that_is_killed(household, before):
    code = (
        "import os; from staging.process import ZmqListener, get_engine_client_zmq_addr; "
        f"listener = ZmqListener.bind(get_engine_client_zmq_addr(True, '')); {before}"
        "print(listener.address, flush=True); os.kill(os.getpid(), 9)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert result.returncode == -signal.SIGKILL
    household.expect_empty()
    assert not os.path.exists(result.stdout.strip().removeprefix("ipc://"))


def test_an_interrupted_bind_leaves_no_file(household, monkeypatch):
    address = local()

    class Interruption(BaseException):
        pass

    def interrupt(*args, **kwargs):
        raise Interruption

    monkeypatch.setattr("staging.process.guard.Guard.add_path", interrupt)
    with pytest.raises(Interruption):
        ZmqListener.bind(address)
    assert not os.path.exists(address.removeprefix("ipc://"))
    assert guard().warden_pid is None


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("ipc://relative/path", "must be absolute"),
        ("ipc://@abstract", "must be absolute"),
        ("ipc://*", "must be absolute"),
        ("ipc://", "must be absolute"),
        ("ipc:///" + "x" * 107, "at most 107"),
        ("inproc://x", "use ipc:///absolute/path or tcp://host:port"),
        ("127.0.0.1:80", "use ipc:///absolute/path or tcp://host:port"),
        (None, "must be a string"),
        ("tcp://::1:80", "write IPv6 in brackets"),
        ("tcp://host", "needs a host and a port"),
        ("tcp://:80", "needs a host and a port"),
        ("tcp://host:", "the port must be"),
        ("tcp://host:x", "the port must be"),
        ("tcp://host:65536", "the port must be"),
        ("tcp://host:-1", "the port must be"),
    ],
)
def test_an_address_that_cannot_be_bound_says_why(address, reason):
    with pytest.raises(ValueError, match=reason):
        ZmqListener.bind(address)


def test_a_host_that_cannot_be_resolved_is_named():
    with pytest.raises(OSError, match=r"no-such-host\.invalid"):
        ZmqListener.bind("tcp://no-such-host.invalid:0")


def test_a_folder_that_is_not_there_is_named(household, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ZmqListener.bind(f"ipc://{tmp_path}/nowhere/socket")
    assert guard().warden_pid is None


class Wrong:
    """Sockets that libzmq would take without a word."""

    @staticmethod
    def closed():
        sock = socket.socket()
        sock.close()
        return "tcp://127.0.0.1:1", sock

    @staticmethod
    def other_family():
        sock = socket.socket(socket.AF_UNIX)
        sock.bind("")
        sock.listen()
        return "tcp://127.0.0.1:1", sock

    @staticmethod
    def datagrams():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{sock.getsockname()[1]}", sock

    @staticmethod
    def not_listening():
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{sock.getsockname()[1]}", sock

    @staticmethod
    def other_port():
        sock = socket.create_server(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{sock.getsockname()[1] ^ 1}", sock

    @staticmethod
    def other_host():
        sock = socket.create_server(("127.0.0.1", 0))
        return f"tcp://127.0.0.2:{sock.getsockname()[1]}", sock

    @staticmethod
    def other_path():
        sock = socket.socket(socket.AF_UNIX)
        sock.bind("")
        sock.listen()
        return "ipc:///tmp/somewhere", sock

    @staticmethod
    def no_socket():
        reader, writer = os.pipe()
        os.close(writer)
        sock = socket.socket()
        os.dup2(reader, sock.fileno())
        os.close(reader)
        return "tcp://127.0.0.1:1", sock


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Wrong.closed, "is closed"),
        (Wrong.other_family, "cannot serve"),
        (Wrong.datagrams, "cannot serve"),
        (Wrong.not_listening, "does not listen"),
        (Wrong.other_port, "listens at"),
        (Wrong.other_host, "listens at"),
        (Wrong.other_path, "listens at"),
        (Wrong.no_socket, "is no socket"),
    ],
)
def test_a_wrong_socket_is_refused_and_closed(context, make, reason):
    address, sock = make()
    with pytest.raises(ValueError, match=reason):
        ZmqListener(address, sock).adopt(context, zmq.ROUTER)
    assert sock.fileno() == -1


def test_an_error_while_adopting_closes_both_ends(context, household):
    listener = ZmqListener.bind("tcp://127.0.0.1:0")
    port = int(listener.address.rsplit(":", 1)[1])
    with pytest.raises((AttributeError, zmq.ZMQError)):
        listener.adopt(context, zmq.ROUTER, no_such_option=1)
    assert listener.socket.fileno() == -1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    context.term()  # would wait for an open socket


def test_what_is_adopted_is_not_inherited_and_does_not_block(context, household):
    listener = ZmqListener.bind("tcp://127.0.0.1:0")
    copy = listener.socket.dup()
    os.set_inheritable(listener.socket.fileno(), True)
    fd = listener.socket.fileno()
    adopted = listener.adopt(context, zmq.ROUTER)
    assert not os.get_inheritable(fd)
    assert not os.get_blocking(fd)
    adopted.close(linger=0)
    copy.close()
