"""What one scheduler step consists of: context (prefill) and generation (decode) work.

The function runs once per step of a serving loop, on the thread that schedules, so it
makes one pass and calls into the scheduler only where a request's phase is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "CachedRequests",
    "EncoderInputStats",
    "IterationDetails",
    "NewRequest",
    "SchedulerOutput",
    "compute_iteration_details",
]


class NewRequest(Protocol):
    """A request that is scheduled for the first time."""

    @property
    def req_id(self) -> str:
        """The request's id, a key of ``num_scheduled_tokens``."""


class CachedRequests(Protocol):
    """The requests that were scheduled before."""

    def is_context_phase(self, req_id: str) -> bool:
        """Whether a request has produced no token yet (a chunk of a long prompt)."""


class EncoderInputStats(Protocol):
    """What the step sends through a multimodal encoder."""

    @property
    def num_inputs(self) -> int:
        """Number of encoder inputs (images, audio clips, …)."""

    @property
    def output_tokens(self) -> int:
        """Number of tokens (embeddings) that they become."""


class SchedulerOutput(Protocol):
    """The parts of a scheduler's output that are read here."""

    @property
    def scheduled_new_reqs(self) -> Iterable[NewRequest]:
        """Requests scheduled for the first time."""

    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]:
        """Tokens to compute in this step, for every scheduled request by its id."""

    @property
    def scheduled_cached_reqs(self) -> CachedRequests:
        """Requests scheduled before."""

    @property
    def scheduled_encoder_input_stats(self) -> EncoderInputStats | None:
        """The step's encoder work, or None where there is none."""


@dataclass(frozen=True)
class IterationDetails:
    """How many requests and tokens of a step are in which phase.

    Attributes
    ----------
    num_ctx_requests, num_ctx_tokens
        Requests that have produced no token yet, and their tokens in this step.
    num_generation_requests, num_generation_tokens
        Requests that are producing tokens, and their tokens in this step.
    num_encoder_inputs, num_encoder_output_tokens
        Inputs of a multimodal encoder, and the tokens that they become.
    """

    num_ctx_requests: int
    num_ctx_tokens: int
    num_generation_requests: int
    num_generation_tokens: int
    num_encoder_inputs: int = 0
    num_encoder_output_tokens: int = 0


def compute_iteration_details(scheduler_output: SchedulerOutput) -> IterationDetails:
    """Count the requests and tokens of a step by phase.

    A request is in context when it is new, or when ``is_context_phase`` says so (a later
    chunk of its prompt); every other request generates.

    Parameters
    ----------
    scheduler_output
        Any object with the attributes of `SchedulerOutput`. It is only read. The encoder's
        figures may be missing altogether, as in schedulers without an encoder.

    Returns
    -------
    IterationDetails
        The counts.
    """
    tokens = scheduler_output.num_scheduled_tokens
    new_ids = {request.req_id for request in scheduler_output.scheduled_new_reqs}
    is_context_phase = scheduler_output.scheduled_cached_reqs.is_context_phase
    # Generation is what remains of the totals: a decode-heavy step then adds up nothing
    # but what sum() adds up. A new id is looked up first because that costs no call.
    context = [
        count for req_id, count in tokens.items() if req_id in new_ids or is_context_phase(req_id)
    ]
    num_ctx_requests = len(context)
    num_ctx_tokens = sum(context)
    encoder = getattr(scheduler_output, "scheduled_encoder_input_stats", None)
    return IterationDetails(
        num_ctx_requests=num_ctx_requests,
        num_ctx_tokens=num_ctx_tokens,
        num_generation_requests=len(tokens) - num_ctx_requests,
        num_generation_tokens=sum(tokens.values()) - num_ctx_tokens,
        num_encoder_inputs=0 if encoder is None else encoder.num_inputs,
        num_encoder_output_tokens=0 if encoder is None else encoder.output_tokens,
    )
