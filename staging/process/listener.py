"""Listening sockets that a supervisor binds and a child's ZMQ socket adopts.

The port is known, and connections queue, before any child exists; nobody can take the
port between the moment it is chosen and the moment it is used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket as _socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from staging.process import warden
from staging.process.addresses import MAX_IPC_PATH, bracketed, release_folder
from staging.process.guard import guard

if TYPE_CHECKING:
    import zmq

_USE_FD = 89  # ZMQ_USE_FD, zmq_setsockopt(3)

# How long to wait (seconds) for another process that binds in the same folder.
_FOLDER_LOCK_TIMEOUT = 2.0


class ZmqListener:
    """A listening socket and the address at which peers connect to it.

    Parameters
    ----------
    address
        ``ipc:///absolute/path``, or ``tcp://host:port`` with IPv6 in brackets.
    socket
        The listening socket.
    owned
        The ipc file is this process's: `cleanup` removes it, and so does the warden
        when this process dies. `bind` sets it.

    Notes
    -----
    Not thread-safe; the managers that take listeners close them.
    """

    def __init__(self, address: str, socket: _socket.socket, *, owned: bool = False) -> None:
        self._address = address
        self._socket = socket
        self._owner = os.getpid() if owned else None
        self._stat: os.stat_result | None = None
        path = _ipc_path(address)
        if owned and path is not None:
            self._stat = os.lstat(path)
            guard().add_path(path, self._stat)

    @property
    def address(self) -> str:
        """Where peers connect; the port is the real one."""
        return self._address

    @property
    def socket(self) -> _socket.socket:
        """The socket; its ``fileno()`` is -1 once this process's copy is closed."""
        return self._socket

    def __repr__(self) -> str:
        return f"ZmqListener({self._address!r}, fd={self._socket.fileno()})"

    def __reduce__(self) -> tuple[type[ZmqListener], tuple[str, _socket.socket]]:
        # A copy in another process owns no file.
        return ZmqListener, (self._address, self._socket)

    @classmethod
    def bind(cls, address: str) -> ZmqListener:
        """Bind and listen; connections queue from when this returns.

        Parameters
        ----------
        address
            ``ipc:///absolute/path`` or ``tcp://host:port``; port 0 takes a free one,
            and ``address`` then tells which. A stale ipc socket, on which nobody
            listens, is replaced.

        Raises
        ------
        ValueError
            The address is not one of these, or the path is longer than 107 bytes.
        OSError
            The port or the path is in use (EADDRINUSE), or cannot be bound.
        """
        path = _ipc_path(address)
        return cls._bind_tcp(address) if path is None else cls._bind_ipc(address, path)

    @classmethod
    def _bind_tcp(cls, address: str) -> ZmqListener:
        host, port = _tcp_parts(address)
        family, target = _resolve(host, port)
        sock = _socket.socket(family, _socket.SOCK_STREAM)
        try:
            if port:
                # A server that starts again does not wait for TIME_WAIT to pass; a
                # port that the kernel chooses must not be one of those.
                sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            try:
                sock.bind(target)
                sock.listen(_socket.SOMAXCONN)
            except OSError as error:
                raise _named(error, address) from None
            shown = "0.0.0.0" if host == "*" else bracketed(host)
            return cls(f"tcp://{shown}:{sock.getsockname()[1]}", sock, owned=True)
        except BaseException:
            sock.close()
            raise

    @classmethod
    def _bind_ipc(cls, address: str, path: str) -> ZmqListener:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        is_new = guard().expect_path(path)
        try:
            try:
                # Whoever binds between the look at a stale file and its removal would
                # lose his own: two supervisors take turns.
                with _folder_lock(os.path.dirname(path)):
                    try:
                        sock.bind(path)
                    except OSError as error:
                        if error.errno != errno.EADDRINUSE or not warden.remove_stale_socket(path):
                            raise
                        sock.bind(path)
                    sock.listen(_socket.SOMAXCONN)
            except OSError as error:
                raise _named(error, address) from None
            return cls(address, sock, owned=True)
        except BaseException:
            bound = sock.getsockname() == path
            sock.close()
            if bound:
                warden.remove_stale_socket(path)
            if is_new:
                guard().remove_path(path)
            raise

    def close(self) -> None:
        """Close this process's copy of the socket; others keep theirs."""
        self._socket.close()

    def cleanup(self) -> None:
        """Close, and remove the ipc file if this process made it and it is the same."""
        self.close()
        path = _ipc_path(self._address)
        if path is None or self._stat is None or self._owner != os.getpid():
            return
        warden.remove_path(path, self._stat.st_dev, self._stat.st_ino)
        guard().remove_path(path)
        release_folder(path)
        self._stat = None

    def adopt(self, context: zmq.Context[Any], socket_type: int, **options: Any) -> Any:
        """Return a ZMQ socket that accepts on this listening socket; in the child.

        The listening socket then belongs to the ZMQ socket, and ``socket.fileno()``
        is -1. It is not inheritable by this process's own children.

        Parameters
        ----------
        context
            A `zmq.Context`, or a `zmq.asyncio.Context`.
        socket_type
            Such as `zmq.ROUTER`.
        **options
            Socket options that are set before, by pyzmq's names: ``linger=0``.

        Raises
        ------
        ValueError
            The socket is closed, does not listen, or is not at the address. Both ends
            are then closed, as on any error. (libzmq accepts any descriptor, and then
            accepts nothing.)
        """
        adopted = None
        try:
            self._check_socket()
            os.set_inheritable(self._socket.fileno(), False)
            # libzmq accepts when the descriptor is readable; where several processes
            # share it, another may have been faster.
            self._socket.setblocking(False)
            adopted = context.socket(socket_type)
            if self._socket.family == _socket.AF_INET6:
                adopted.setsockopt(42, 1)  # ZMQ_IPV6
            for name, value in options.items():
                setattr(adopted, name, value)
            adopted.setsockopt(_USE_FD, self._socket.fileno())
            adopted.bind(self._address)
        except BaseException:
            if adopted is not None:
                adopted.close(linger=0)
            self._socket.close()
            raise
        self._socket.detach()
        return adopted

    def _check_socket(self) -> None:
        sock = self._socket
        if sock.fileno() < 0:
            raise ValueError(f"the listener for {self._address} is closed")
        path = _ipc_path(self._address)
        try:
            kind = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_TYPE)
            family = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_DOMAIN)
            listens = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN)
            name = sock.getsockname()
        except OSError as error:
            raise ValueError(
                f"descriptor {sock.fileno()}, given for {self._address}, is no socket: "
                f"{error.strerror}"
            ) from None
        families = {_socket.AF_INET, _socket.AF_INET6} if path is None else {_socket.AF_UNIX}
        if kind != _socket.SOCK_STREAM or family not in families:
            raise ValueError(
                f"descriptor {sock.fileno()} is a socket of family {family} and type {kind}, "
                f"which cannot serve {self._address}"
            )
        if not listens:
            raise ValueError(
                f"the socket given for {self._address} does not listen: use ZmqListener.bind"
            )
        if not _is_named(name, self._address, family):
            raise ValueError(f"the socket given for {self._address} listens at {name!r} instead")


def _ipc_path(address: str) -> str | None:
    """Return the path of an ipc address, None for a tcp address.

    Raises
    ------
    ValueError
        It is neither, or the path cannot be used.
    """
    if not isinstance(address, str):
        raise ValueError(f"address is {address!r}: it must be a string")
    if address.startswith("tcp://"):
        return None
    if not address.startswith("ipc://"):
        raise ValueError(f"address is {address!r}: use ipc:///absolute/path or tcp://host:port")
    path = address[len("ipc://") :]
    if not path.startswith("/"):
        raise ValueError(
            f"address is {address!r}: an ipc path must be absolute (an abstract or a relative "
            "one cannot be found, or removed, by every process)"
        )
    if len(os.fsencode(path)) > MAX_IPC_PATH:
        raise ValueError(
            f"address is {address!r}: its path has {len(os.fsencode(path))} bytes, and a "
            f"socket's path at most {MAX_IPC_PATH}; get_engine_client_zmq_addr makes a short one"
        )
    return path


def _tcp_parts(address: str) -> tuple[str, int]:
    host, colon, port = address[len("tcp://") :].rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address is {address!r}: write IPv6 in brackets, as tcp://[::1]:0")
    if not colon or not host:
        raise ValueError(f"address is {address!r}: it needs a host and a port, as tcp://host:0")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"address is {address!r}: the port must be from 0 to 65535")
    return host, int(port)


def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Return the family and the address to bind; IPv4 before IPv6 for a name.

    ZMQ resolves names so, too, unless ZMQ_IPV6 is set.
    """
    if host == "*":
        return _socket.AF_INET, ("0.0.0.0", port)
    try:
        found = _socket.getaddrinfo(host, port, type=_socket.SOCK_STREAM)
    except _socket.gaierror as error:
        raise OSError(
            errno.EADDRNOTAVAIL, f"cannot resolve host {host!r}: {error.strerror}"
        ) from None
    found.sort(key=lambda entry: entry[0] != _socket.AF_INET)
    return found[0][0], found[0][4]


def _is_named(name: Any, address: str, family: int) -> bool:
    """Return whether a socket's own name is that of an address."""
    path = _ipc_path(address)
    if path is not None:
        return os.fsencode(name) == os.fsencode(path)
    host, port = _tcp_parts(address)
    if name[1] != port:
        return False
    if host == "*":
        return name[0] in {"0.0.0.0", "::"}
    try:
        found = _socket.getaddrinfo(host, port, family, _socket.SOCK_STREAM)
    except _socket.gaierror:
        return False
    return any(entry[4][0] == name[0] for entry in found)


def _named(error: OSError, address: str) -> OSError:
    """Return the same error with the address in its text."""
    return type(error)(error.errno, f"cannot listen on {address}: {error.strerror or error}")


@contextlib.contextmanager
def _folder_lock(folder: str) -> Iterator[None]:
    """Hold flock(2) on a folder, which leaves no file behind.

    Whoever waits too long goes on without: another program may hold the folder.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _FOLDER_LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.005)
        yield
    finally:
        os.close(fd)
