"""Handles for results on their way to the host."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Generator
from typing import Any

from staging.arguments import seconds_argument
from staging.extension import _C, torch

# How often an event loop looks whether a copy failed. The runtime makes no callback after an
# error, so without this an await would not end.
WATCHDOG_S = 0.5


class Fetch:
    """A device-to-host copy into memory of its own, made by ``CpuGpuBuffer.fetch``.

    It can be asked, waited for, and awaited in asyncio. Many may be in flight at once. Dropping
    it is safe at any time: the memory is kept until the copy is done.

    Notes
    -----
    ``await`` polls nothing: a native callback of the CUDA runtime, on a private stream that
    waits for the copy's event, makes a file descriptor of the event loop readable. It neither
    takes the GIL nor holds up the stream of the copy. Cancelling the awaiting task leaves the
    fetch as it is.
    """

    __slots__ = ("__weakref__", "_handle", "_tensor")

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._tensor: torch.Tensor | None = None

    def done(self) -> bool:
        """Return whether the bytes are there. Waits for nothing.

        Raises
        ------
        DeviceError
            The copy, or earlier work of the device, failed.
        """
        done: bool = self._handle.done()
        return done

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the bytes are there.

        Parameters
        ----------
        timeout
            In seconds; without one, for as long as it takes.

        Returns
        -------
        bool
            Whether they are there; False where ``timeout`` passed first.

        Raises
        ------
        DeviceError
            The copy, or earlier work of the device, failed.
        KeyboardInterrupt
            Ctrl-C ends the wait, not the copy.

        Notes
        -----
        Waits for this copy alone, without the GIL.
        """
        done: bool = self._handle.wait(seconds_argument(timeout, "timeout"))
        return done

    def result(self, timeout: float | None = None) -> torch.Tensor:
        """Wait for the bytes and return them.

        Parameters
        ----------
        timeout
            In seconds; without one, for as long as it takes.

        Returns
        -------
        torch.Tensor
            A host tensor of its own, the same at every call. Its memory is pinned.

        Raises
        ------
        TimeoutError
            The copy was not done in time; it goes on, and can be asked again.
        DeviceError
            The copy, or earlier work of the device, failed.
        """
        if not self._handle.wait(seconds_argument(timeout, "timeout")):
            raise TimeoutError(f"the fetch was not done within timeout={timeout} s")
        if self._tensor is None:
            self._tensor = self._handle.tensor()
        return self._tensor

    def __await__(self) -> Generator[Any, None, torch.Tensor]:
        """Wait in asyncio, then return what ``result()`` returns."""
        yield from until_done(self._handle)
        return self.result()

    def __repr__(self) -> str:
        """Shape and dtype, without asking the device."""
        tensor = self._handle.tensor()
        return f"Fetch({tuple(tensor.shape)}, dtype={tensor.dtype})"


def until_done(handle: _C.FetchHandle | _C.PendingDigests) -> Generator[Any, None, None]:
    """Wait in asyncio until something that a device does is done, without polling.

    Parameters
    ----------
    handle
        What is waited for. Cancelling the wait leaves it as it is.

    Raises
    ------
    DeviceError
        The device failed.
    """
    if not handle.done():
        yield from _completions().watch(handle).__await__()


class _Completions:
    """What one event loop waits for: its descriptor, its tokens, its watchdog.

    Belongs to the loop's thread. The descriptor is watched only while something is pending.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._queue = _C.CompletionQueue()
        self._pending: dict[int, tuple[asyncio.Future[None], Any]] = {}
        self._next_token = 0
        self._watchdog: asyncio.TimerHandle | None = None

    def watch(self, handle: Any) -> asyncio.Future[None]:
        loop = self._running()
        token = self._next_token
        self._next_token += 1
        future: asyncio.Future[None] = loop.create_future()
        if not self._pending:
            loop.add_reader(self._queue.fileno(), self._drain)
            self._watchdog = loop.call_later(WATCHDOG_S, self._look)
        self._pending[token] = (future, handle)
        # Also where it is cancelled: the token is then nobody's.
        future.add_done_callback(lambda _: self._forget(token))
        try:
            handle.notify(self._queue, token)
        except BaseException:
            future.cancel()
            self._forget(token)
            raise
        return future

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop()
        assert loop is not None
        return loop

    def _drain(self) -> None:
        for token in self._queue.drain():
            future, _ = self._pending.get(token, (None, None))
            if future is not None and not future.done():
                future.set_result(None)

    def _look(self) -> None:
        for future, handle in list(self._pending.values()):
            if future.done():
                continue
            try:
                if handle.done():
                    future.set_result(None)
            except Exception as error:  # whatever it is, the await ends with it
                future.set_exception(error)
        if self._pending:
            self._watchdog = self._running().call_later(WATCHDOG_S, self._look)

    def _forget(self, token: int) -> None:
        if self._pending.pop(token, None) is None or self._pending:
            return
        loop = self._running()
        if not loop.is_closed():
            loop.remove_reader(self._queue.fileno())
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None


_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Completions] = (
    weakref.WeakKeyDictionary()
)


def _completions() -> _Completions:
    loop = asyncio.get_running_loop()
    completions = _by_loop.get(loop)
    if completions is None:
        # A loop that was closed with something pending is kept alive by that, with a descriptor.
        for reference in _by_loop.keyrefs():
            other = reference()
            if other is not None and other.is_closed():
                _by_loop.pop(other, None)
        completions = _by_loop[loop] = _Completions(loop)
    return completions
