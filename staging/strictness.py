"""Strict mode: what would be slow or synchronous raises."""

from __future__ import annotations

from types import TracebackType

from staging.arguments import flag_argument
from staging.extension import _C

StrictError = _C.StrictError
SlowPathWarning = _C.SlowPathWarning
StagingHint = _C.StagingHint

__all__ = ["SlowPathWarning", "StagingHint", "StrictError", "report_slow_path", "strict"]


class strict:
    """Switch strict mode on or off, for the whole process.

    In strict mode a call that would be slower or less asynchronous than it looks (a pageable
    source or destination, a gap in memory, a hidden copy) raises ``StrictError``, which names
    the argument, before anything is done. Otherwise it warns with ``SlowPathWarning``, once for
    each line of the program.

    Parameters
    ----------
    enabled
        The environment variable ``STAGING_STRICT=1`` sets it from the start.

    Examples
    --------
    >>> staging.strict(True)                  # from here on
    >>> with staging.strict(True):            # in a block
    ...     staging.copy_slice(pageable, gpu, 4)
    Traceback (most recent call last):
    staging.StrictError: from_tensor is pageable: ...
    """

    def __init__(self, enabled: bool = True) -> None:
        self._before: bool = _C.strict()
        _C.set_strict(flag_argument(enabled, "enabled"))

    def __enter__(self) -> strict:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _C.set_strict(self._before)

    def __repr__(self) -> str:
        """Say whether it is on now."""
        return f"strict({_C.strict()})"


def report_slow_path(argument: str, problem: str, remedy: str) -> None:
    """Raise ``StrictError`` in strict mode, else warn once for the caller's line.

    Parameters
    ----------
    argument
        The argument whose value makes the call slow.
    problem
        What about it, as the rest of the sentence: "is pageable: ...".
    remedy
        What to do instead.
    """
    _C.report_slow_path(argument, problem, remedy)
