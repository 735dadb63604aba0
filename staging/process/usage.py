"""Usage statistics of a serving configuration, for operators who ask for them.

Nothing is sent or written unless the operator names where: ``STAGING_USAGE_STATS_URL``
(each record is POSTed there as JSON) or ``STAGING_USAGE_STATS_PATH`` (each record is
appended there as one JSON line), or both. There is no default remote. ``DO_NOT_TRACK``
(consoledonottrack.com) or ``STAGING_NO_USAGE_STATS`` set to a true value wins over
everything.

A record holds the shape of a deployment: sizes, types and switches out of a fixed table.
It holds no model name, path, address, user, machine or content.

Invariants: a record is one whole JSON line or none; reporting never raises, never blocks
the caller beyond reading the configuration, and never keeps a process from exiting.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import http.client
import json
import logging
import math
import os
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "UsageContext",
    "collect_usage_stats",
    "is_usage_stats_enabled",
    "report_usage_stats",
]

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 5.0
"""How long one record may take to be delivered, in seconds, before it is given up."""

THREAD_NAME = "staging-usage-stats"

_TRUE = frozenset({"1", "true", "yes", "on"})
_OPT_OUTS = ("DO_NOT_TRACK", "STAGING_NO_USAGE_STATS")
_MAX_TEXT = 256
_LOCK_POLL_S = 0.02

# Record key -> the places where a serving configuration keeps it, the first that answers
# wins. A place is a path of attributes (or of keys, where a part is a mapping).
_FIELDS: dict[str, tuple[str, ...]] = {
    "architecture": (
        "model_config.architecture",
        "model_config.architectures",
        "model_config.hf_config.architectures",
    ),
    "dtype": ("model_config.dtype",),
    "quantization": ("model_config.quantization",),
    "enforce_eager": ("model_config.enforce_eager",),
    "max_model_len": ("model_config.max_model_len",),
    "block_size": ("cache_config.block_size",),
    "kv_cache_dtype": ("cache_config.cache_dtype",),
    "gpu_memory_utilization": ("cache_config.gpu_memory_utilization",),
    "kv_cache_memory_bytes": ("cache_config.kv_cache_memory_bytes",),
    "enable_prefix_caching": ("cache_config.enable_prefix_caching",),
    "tensor_parallel_size": ("parallel_config.tensor_parallel_size",),
    "pipeline_parallel_size": ("parallel_config.pipeline_parallel_size",),
    "data_parallel_size": ("parallel_config.data_parallel_size",),
    "enable_expert_parallel": ("parallel_config.enable_expert_parallel",),
    "all2all_backend": ("parallel_config.all2all_backend",),
    "disable_custom_all_reduce": ("parallel_config.disable_custom_all_reduce",),
    "num_redundant_experts": ("parallel_config.eplb_config.num_redundant_experts",),
    "num_experts": (
        "model_config.hf_text_config.num_experts",
        "model_config.hf_text_config.num_local_experts",
        "model_config.hf_text_config.n_routed_experts",
        "model_config.hf_config.num_experts",
        "model_config.hf_config.num_local_experts",
        "model_config.hf_config.n_routed_experts",
    ),
    "num_experts_per_token": (
        "model_config.hf_text_config.num_experts_per_tok",
        "model_config.hf_config.num_experts_per_tok",
    ),
    "enable_chunked_prefill": ("scheduler_config.enable_chunked_prefill",),
    "async_scheduling": ("scheduler_config.async_scheduling",),
    "max_num_seqs": ("scheduler_config.max_num_seqs",),
    "max_num_batched_tokens": ("scheduler_config.max_num_batched_tokens",),
    "attention_backend": ("attention_config.backend", "model_config.attention_backend"),
    "compilation_mode": ("compilation_config.mode", "compilation_config.level"),
    "cudagraph_mode": ("compilation_config.cudagraph_mode",),
    "speculative_method": ("speculative_config.method",),
    "num_speculative_tokens": ("speculative_config.num_speculative_tokens",),
    "kv_connector": ("kv_transfer_config.kv_connector",),
}

# Record key -> a part whose mere presence is the feature's switch.
_PRESENCE: dict[str, str] = {
    "enable_lora": "lora_config",
    "speculative_decoding": "speculative_config",
}


class UsageContext(str, enum.Enum):
    """Where a configuration is used from."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _TRUE


def is_usage_stats_enabled() -> bool:
    """Whether a record would be delivered anywhere, by the environment as it is now."""
    if any(map(_is_true, _OPT_OUTS)):
        return False
    return any(
        os.environ.get(name, "").strip()
        for name in ("STAGING_USAGE_STATS_URL", "STAGING_USAGE_STATS_PATH")
    )


class _Missing(Exception):
    """A part of a configuration that is not there, or cannot be read."""


def _part(config: object, path: str) -> object:
    value = config
    for name in path.split("."):
        try:
            # Whatever a configuration's own property raises means that it has no answer.
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        except Exception as error:
            raise _Missing(path) from error
    return value


def _plain(value: object) -> bool | int | float | str:
    """Return `value` as JSON can hold it; raise `_Missing` where there is nothing to say."""
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    if value is None:
        raise _Missing
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Missing
        return float(value)
    try:
        # A dtype is an object whose text is its name (torch.bfloat16).
        return str(value)[:_MAX_TEXT]
    except Exception as error:
        raise _Missing from error


def collect_usage_stats(config: object) -> dict[str, bool | int | float | str]:
    """Read what a record says about a configuration.

    Parameters
    ----------
    config
        Any serving configuration: an object (or mapping) with parts such as
        ``model_config``, ``cache_config``, ``parallel_config``. It is only read.

    Returns
    -------
    dict
        Plain JSON values by name. What the configuration lacks is left out; nothing is
        raised, whatever its properties do.
    """
    stats: dict[str, bool | int | float | str] = {}
    for key, paths in _FIELDS.items():
        for path in paths:
            with contextlib.suppress(_Missing):
                stats[key] = _plain(_part(config, path))
                break
    for key, path in _PRESENCE.items():
        try:
            stats[key] = bool(_part(config, path))
        except Exception:
            continue  # not there, or an object that refuses a truth value
    return stats


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"not delivered within {TIME_LIMIT_S:g} s")
    return left


@contextlib.contextmanager
def _locked(fd: int, deadline: float) -> Iterator[None]:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(min(_LOCK_POLL_S, _remaining(deadline)))
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _append_line(path: str, line: bytes, deadline: float) -> None:
    """Append `line` whole, or leave the file as it was."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        with _locked(fd, deadline):
            size = os.fstat(fd).st_size
            # A line that some other writer left torn must not swallow this one.
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line
            written = 0
            try:
                # One call: a process that dies leaves the whole line or none of it.
                written = os.write(fd, line)
            finally:
                if 0 < written < len(line):
                    os.ftruncate(fd, size)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written")
    finally:
        os.close(fd)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A record goes where the operator said and nowhere else."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _bounded(
    kind: type[http.client.HTTPConnection], deadline: float, timers: list[threading.Timer]
) -> Any:
    """Return a connection class that is cut at `deadline`, however slowly bytes trickle in."""

    class Connection(kind):  # type: ignore[misc, valid-type]
        def connect(self) -> None:
            super().connect()
            timer = threading.Timer(_remaining(deadline), _cut, (self.sock,))
            timer.daemon = True
            timers.append(timer)
            timer.start()

    return Connection


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _post(url: str, line: bytes, deadline: float) -> None:
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        raise ValueError("STAGING_USAGE_STATS_URL is neither http:// nor https://")
    timers: list[threading.Timer] = []

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(_bounded(http.client.HTTPConnection, deadline, timers), req)

    class Secure(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(_bounded(http.client.HTTPSConnection, deadline, timers), req)

    request = urllib.request.Request(
        url, data=line, headers={"Content-Type": "application/json"}, method="POST"
    )
    opener = urllib.request.build_opener(Plain, Secure, _NoRedirect)
    try:
        # The answer's status is enough (an error status raises); its body is not read.
        with opener.open(request, timeout=_remaining(deadline)):
            _remaining(deadline)  # an answer that was cut off at the deadline is none
    finally:
        for timer in timers:
            timer.cancel()


def _deliver(line: bytes, path: str, url: str, deadline: float) -> None:
    # Only the kind of failure is logged: an exception's text may quote the endpoint, and
    # an endpoint may carry a token.
    if path:
        try:
            _append_line(path, line, deadline)
        except Exception as error:
            logger.debug("usage statistics were not written: %s", _kind(error))
    if url:
        try:
            _post(url, line, deadline)
        except Exception as error:
            logger.debug("usage statistics were not sent: %s", _kind(error))


def _kind(error: BaseException) -> str:
    number = getattr(error, "errno", None)
    status = getattr(error, "code", None)
    detail = os.strerror(number) if isinstance(number, int) else status
    return type(error).__name__ + (f" ({detail})" if detail is not None else "")


def report_usage_stats(
    config: object, usage_context: UsageContext | str = UsageContext.ENGINE_CONTEXT
) -> threading.Thread | None:
    """Deliver one record about `config`, if the operator asked for it.

    The configuration is read before this returns. Delivery happens on a daemon thread
    that gives up after `TIME_LIMIT_S`; nothing waits for it, and a process that exits
    earlier drops the record.

    Parameters
    ----------
    config
        A serving configuration, see `collect_usage_stats`.
    usage_context
        Where it is used from.

    Returns
    -------
    threading.Thread or None
        The thread that delivers the record, for a caller who wants to wait for it; None
        where reporting is off.
    """
    if not is_usage_stats_enabled():
        return None
    try:
        from staging import __version__

        record = {
            "time": round(time.time(), 3),
            "version": __version__,
            "context": getattr(usage_context, "value", None) or str(usage_context),
            **collect_usage_stats(config),
        }
        line = json.dumps(record, sort_keys=True, allow_nan=False).encode() + b"\n"
        thread = threading.Thread(
            target=_deliver,
            args=(
                line,
                os.environ.get("STAGING_USAGE_STATS_PATH", "").strip(),
                os.environ.get("STAGING_USAGE_STATS_URL", "").strip(),
                time.monotonic() + TIME_LIMIT_S,
            ),
            name=THREAD_NAME,
            daemon=True,
        )
        thread.start()
    except Exception as error:
        logger.debug("usage statistics were not collected: %s", _kind(error))
        return None
    return thread
