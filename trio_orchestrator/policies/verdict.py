"""The three verdicts on a call: success, failure, and *neutral*, from which nothing is learned."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, final

from trio_orchestrator.algorithms.argument import plain_function
from trio_orchestrator.block import settle_later
from trio_orchestrator.errors import RejectedError
from trio_orchestrator.policies.failure import GiveUp, On, is_timeout, leaves, matcher


@final
class Verdict(enum.Enum):
    """What a guard learns from a call."""

    SUCCESS = "success"
    """The other side answered."""
    FAILURE = "failure"
    NEUTRAL = "neutral"
    """Nothing is known: somebody cancelled the call, or a policy further in refused it."""


SUCCESS: Final = Verdict.SUCCESS
FAILURE: Final = Verdict.FAILURE
NEUTRAL: Final = Verdict.NEUTRAL


@final
class Judge:
    """Tells the verdict on what a call raised or returned. Immutable.

    Args:
        on: Which exceptions are failures; any other `Exception` means that the other side answered.
        neutral: Which exceptions say nothing. Comes before `on`.
        classify: Tells of a *result* whether it is a failure; None: no result is.
    """

    __slots__ = ("_fails", "_neutral", "_on", "_says_nothing", "classify")

    def __init__(self, on: On, neutral: On = (), classify: Callable[[Any], bool] | None = None) -> None:
        self._on, self._neutral = on, neutral
        self._fails = matcher(on, exhausted_too=True, permanent_too=True)
        self._says_nothing = _named("neutral", neutral)
        if classify is not None:
            plain_function("classify", classify)
        self.classify: Callable[[Any], bool] | None = classify

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        return {"on": self._on, "neutral": self._neutral, "classify": self.classify}

    def of_result(self, result: object) -> Verdict:
        """Judge a result. What `classify` raises comes out."""
        return FAILURE if self.classify is not None and self.classify(result) else SUCCESS

    def of_error(self, error: BaseException) -> Verdict:
        """Judge what a call raised. Whatever is no `Exception` is neutral: see `report` for time-outs of ours.

        A group is a failure if one of its leaves is, and neutral if all of them are. Marks that are about repeating
        make no difference.
        """
        if not isinstance(error, Exception):
            return NEUTRAL
        verdicts = {self._of_leaf(leaf) for leaf in leaves(error)}
        return next(verdict for verdict in (FAILURE, SUCCESS, NEUTRAL) if verdict in verdicts)

    def _of_leaf(self, error: Any) -> Verdict:
        if isinstance(error, GiveUp):  # an order to a retry: what counts is the error in it
            return self.of_error(error.error)
        if isinstance(error, RejectedError):
            return NEUTRAL
        if is_timeout(error):
            return FAILURE
        if self._says_nothing(error):
            return NEUTRAL
        return FAILURE if self._fails(error) else SUCCESS

    def report(self, error: BaseException, settle: Callable[[Verdict], None]) -> None:
        """Have `settle(verdict)` called for what a call raised: now, or when a time-out of ours around it has closed.

        That time-out is a failure; any other cancellation is neutral.
        """
        if isinstance(error, Exception):
            settle(self.of_error(error))
        else:
            settle_later(lambda timed_out: settle(FAILURE if timed_out else NEUTRAL))


def _named(name: str, on: On) -> Callable[[BaseException], bool]:
    try:
        return matcher(on, exhausted_too=True, permanent_too=True)
    except TypeError as error:
        raise TypeError(str(error).replace("on must", f"{name} must", 1)) from None
