"""What a server hands its engines, and the process that an engine runs in.

An engine is a function ``engine(context, *, engine_index)``. It connects to the workers'
addresses, calls ``context.ready()`` once it can take requests, and returns when there is
nothing left to do. SIGTERM raises SystemExit in it, once, wherever it is, so that its
``finally`` blocks put its things away; until the function is loaded it simply ends the
process.
"""

from __future__ import annotations

import importlib
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from staging.process.children import starts_with_sigterm_blocked, unblock_sigterm
from staging.process.process_logs import configure_logging, prefix_streams
from staging.process.status_board import ProcessState, StatusBoard, StatusRow

__all__ = ["EngineContext", "load_engine", "run_engine"]

logger = logging.getLogger(__name__)


@dataclass
class EngineContext:
    """What an engine works with.

    Attributes
    ----------
    input_addresses, output_addresses
        The workers' ZMQ addresses, in the order of the workers: requests come from the
        first, answers go to the second. See `staging.process.engine_client`.
    """

    input_addresses: list[str]
    output_addresses: list[str]
    board: StatusBoard | None = None
    logging_config: Any = None
    log_level: str = "INFO"
    _row: StatusRow | None = field(default=None, repr=False)

    def ready(self) -> None:
        """Tell the supervisor that requests can come."""
        if self._row is not None:
            self._row.beat()
            self._row.set_state(ProcessState.READY)

    def beat(self) -> None:
        """Give a sign of life.

        An engine that has given one and then none for ten seconds is reported as
        unresponsive, so give them often or never.
        """
        if self._row is not None:
            self._row.beat()


def load_engine(spec: str) -> Callable[..., Any]:
    """Return the engine function that ``"module:function"`` names.

    Raises
    ------
    ValueError
        There is no such function. What the module raises passes through.
    """
    module_name, colon, attribute = spec.partition(":")
    if not module_name or not colon or not attribute:
        raise ValueError(f"engine {spec!r}: write it as 'module:function'")
    engine: Any = importlib.import_module(module_name)
    for name in attribute.split("."):
        engine = getattr(engine, name, None)
    if not callable(engine):
        raise ValueError(f"engine {spec!r}: there is no such function")
    loaded: Callable[..., Any] = engine
    return loaded


class _Sigterm:
    """SIGTERM in an engine's process: raises SystemExit once, later ones change nothing."""

    def __init__(self, row: StatusRow | None) -> None:
        self._row = row
        self._seen = False

    def __call__(self, signum: int, frame: object) -> None:
        if not self._seen:
            self._seen = True
            if self._row is not None:
                self._row.set_state(ProcessState.DRAINING)
            raise SystemExit(0)


@starts_with_sigterm_blocked
def run_engine(spec: str, context: EngineContext, *, engine_index: int) -> None:
    """Run an engine in its own process; the target of an `EngineProcessManager`.

    Parameters
    ----------
    spec
        The engine, as `load_engine` takes it.
    context
        What it works with.
    engine_index
        Passed on.
    """
    title = f"EngineCore_{engine_index}"
    row = None if context.board is None else context.board.row(title)
    if row is not None:
        row.begin()
    handler = _Sigterm(row)
    assert threading.current_thread() is threading.main_thread()
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
    unblock_sigterm()
    _set_title(title)
    prefix_streams(title)
    configure_logging(context.logging_config, level=context.log_level)
    context._row = row
    load_engine(spec)(context, engine_index=engine_index)


def _set_title(title: str) -> None:
    try:
        import setproctitle
    except ImportError:
        return
    setproctitle.setproctitle(title)
