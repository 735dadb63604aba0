"""Tell systemd, or another service manager, how far a service is; sd_notify(3).

The protocol is a datagram of ``KEY=VALUE`` lines to the Unix socket that
``NOTIFY_SOCKET`` names, which may be abstract (a leading ``@``). Without that variable
nothing is sent. Nothing here raises or blocks: a manager that does not listen must not
keep a server from serving.
"""

from __future__ import annotations

import logging
import os
import socket

__all__ = ["Notifier"]

logger = logging.getLogger(__name__)


class Notifier:
    """Sends to the service manager that ``NOTIFY_SOCKET`` named when this was made.

    The variable is removed from the environment: children must not speak for the service.
    """

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")
        # An address of another family (vsock) is not served.
        self._address = address if address[:1] in {"/", "@"} else ""

    def ready(self, status: str) -> bool:
        """Tell that the service has started; return whether that was sent."""
        return self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={_one_line(status)}")

    def stopping(self, status: str) -> bool:
        """Tell that the service has begun to stop; return whether that was sent."""
        return self._send(f"STOPPING=1\nSTATUS={_one_line(status)}")

    def _send(self, message: str) -> bool:
        if not self._address:
            return False
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.connect(address)
                sock.send(message.encode())
        except OSError as error:
            logger.warning("cannot notify %s: %s", self._address, error)
            return False
        return True


def _one_line(text: str) -> str:
    return " ".join(text.split())
