"""Start, watch and end the processes of a multi-process model server.

Pure Python: importing this package loads neither torch, nor NumPy, nor the
extension module. Each name below is loaded from its module when it is first used
(PEP 562), because every child process imports this package before it does anything
else, and a child that is still importing is a child that cannot be drained.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public name -> the module that defines it. The imports for type checkers below say
# the same; tests/staging/process/test_init.py compares the two.
_EXPORTS = {
    "APIServerProcessManager": "staging.process.api_servers",
    "ChildProcess": "staging.process.children",
    "EngineProcessManager": "staging.process.engines",
    "IterationDetails": "staging.process.iteration",
    "ProcessReport": "staging.process.termination",
    "RayEngineManager": "staging.process.ray_engines",
    "RustFrontendProcessManager": "staging.process.frontend",
    "ShutdownReport": "staging.process.termination",
    "ZmqListener": "staging.process.listener",
    "compute_iteration_details": "staging.process.iteration",
    "get_engine_client_zmq_addr": "staging.process.addresses",
    "report_usage_stats": "staging.process.usage",
    "run_api_server_worker_proc": "staging.process.worker",
    "shutdown": "staging.process.termination",
    "wait_for_completion_or_failure": "staging.process.wait",
}

if TYPE_CHECKING:
    from staging.process.addresses import get_engine_client_zmq_addr as get_engine_client_zmq_addr
    from staging.process.api_servers import APIServerProcessManager as APIServerProcessManager
    from staging.process.children import ChildProcess as ChildProcess
    from staging.process.engines import EngineProcessManager as EngineProcessManager
    from staging.process.frontend import RustFrontendProcessManager as RustFrontendProcessManager
    from staging.process.iteration import IterationDetails as IterationDetails
    from staging.process.iteration import compute_iteration_details as compute_iteration_details
    from staging.process.listener import ZmqListener as ZmqListener
    from staging.process.ray_engines import RayEngineManager as RayEngineManager
    from staging.process.termination import ProcessReport as ProcessReport
    from staging.process.termination import ShutdownReport as ShutdownReport
    from staging.process.termination import shutdown as shutdown
    from staging.process.usage import report_usage_stats as report_usage_stats
    from staging.process.wait import (
        wait_for_completion_or_failure as wait_for_completion_or_failure,
    )
    from staging.process.worker import run_api_server_worker_proc as run_api_server_worker_proc

__all__ = [
    "APIServerProcessManager",
    "ChildProcess",
    "EngineProcessManager",
    "IterationDetails",
    "ProcessReport",
    "RayEngineManager",
    "RustFrontendProcessManager",
    "ShutdownReport",
    "ZmqListener",
    "compute_iteration_details",
    "get_engine_client_zmq_addr",
    "report_usage_stats",
    "run_api_server_worker_proc",
    "shutdown",
    "wait_for_completion_or_failure",
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
