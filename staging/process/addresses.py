"""Addresses at which the processes of a server find one another over ZMQ."""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from multiprocessing import util

from staging.process import warden
from staging.process.guard import guard

RPC_BASE_PATH = "STAGING_RPC_BASE_PATH"
"""Environment variable: the folder in which ipc sockets are made."""

MAX_IPC_PATH = 107
"""Bytes that fit into ``sun_path`` with the NUL that ends it; unix(7)."""


def get_engine_client_zmq_addr(local_only: bool, host: str, port: int = 0) -> str:
    """Return an address for a ZMQ socket between a client and its engines.

    Parameters
    ----------
    local_only
        All who take part are on this machine: return an ipc address that nobody else
        has. `host` and `port` are then ignored.
    host
        A name, an IPv4 or an IPv6 address (in brackets or not).
    port
        0 leaves the choice to the kernel, when the address is bound: it stays 0 in
        what is returned, so that nobody can take the port in between. See
        `ZmqListener.bind`, whose ``address`` has the port.

    Returns
    -------
    str
        ``ipc://<base>/<uuid>``, with the base from ``STAGING_RPC_BASE_PATH`` or else
        the folder for temporary files; where that would be longer than a socket's
        path can be (107 bytes), in a private folder with a short name. Otherwise
        ``tcp://host:port``.

    Raises
    ------
    ValueError
        Not local, and the host is empty or None, or the port is not in 0-65535.
    """
    if local_only:
        name = str(uuid.uuid4())
        path = os.path.join(os.path.abspath(_base_folder()), name)
        if len(os.fsencode(path)) > MAX_IPC_PATH:
            path = os.path.join(_PrivateFolder.get(), name)
        return f"ipc://{path}"
    if not isinstance(host, str) or not host.strip():
        raise ValueError(f"host is {host!r}: give a name or an address, or use local_only")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"port is {port!r}: it must be an integer from 0 to 65535")
    return f"tcp://{bracketed(host.strip())}:{port}"


def bracketed(host: str) -> str:
    """Return `host` as it stands in an address: IPv6 in brackets; RFC 3986, 3.2.2."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def release_folder(path: str) -> None:
    """Remove the private folder that `path` is in, if it is one and is empty now."""
    _PrivateFolder.release(os.path.dirname(path))


def _base_folder() -> str:
    return os.environ.get(RPC_BASE_PATH) or tempfile.gettempdir()


class _PrivateFolder:
    """A folder of this process for sockets whose usual path would be too long.

    It is removed with the last socket in it, at exit, or by the warden.
    """

    _lock = threading.RLock()
    _path: str | None = None  # LOCK: _lock
    _owner = 0
    _stat: os.stat_result

    @classmethod
    def get(cls) -> str:
        with cls._lock:
            if cls._path is None or cls._owner != os.getpid() or not os.path.isdir(cls._path):
                parent = next((p for p in ("/tmp", "/var/tmp", "/dev/shm") if _is_usable(p)), None)
                if parent is None:
                    raise OSError(
                        f"no folder for ipc sockets with a short enough path: set {RPC_BASE_PATH} "
                        f"to one of at most {MAX_IPC_PATH - 37} bytes"
                    )
                cls._path = tempfile.mkdtemp(prefix="stg-", dir=parent)  # mode 0700
                cls._stat = os.stat(cls._path)
                cls._owner = os.getpid()
                guard().add_path(cls._path, cls._stat)
                util.Finalize(None, cls.release, (cls._path,), exitpriority=-100)
            return cls._path

    @classmethod
    def release(cls, path: str) -> None:
        with cls._lock:
            if path != cls._path or cls._owner != os.getpid():
                return
            stat = cls._stat
            if warden.remove_path(path, stat.st_dev, stat.st_ino) or not os.path.isdir(path):
                cls._path = None
                guard().remove_path(path)


def _is_usable(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
