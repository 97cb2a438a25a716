"""What a guard around a call may be told, beside the way in which its block ends."""

from __future__ import annotations

from typing import TypeVar

from trio_orchestrator.policies.verdict import FAILURE, NEUTRAL, Judge, Verdict

T = TypeVar("T")


class Guard:
    """One call through a policy that learns, as a block: `with policy.guard() as guard:`."""

    __slots__ = ("_judge", "_verdict")

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._verdict: Verdict | None = None

    def fail(self) -> None:
        """Say that the call failed, although it raises nothing."""
        self._verdict = FAILURE

    def ignore(self) -> None:
        """Say that the call is to be neutral, however it ends."""
        self._verdict = NEUTRAL

    def judge(self, result: T) -> T:
        """Let `classify` look at a result, and return it. What the block raises later counts too.

        What `classify` raises comes out, and the call is neutral.
        """
        try:
            verdict = self._judge.of_result(result)
        except BaseException:
            self._verdict = NEUTRAL
            raise
        if verdict is FAILURE and self._verdict is None:
            self._verdict = FAILURE
        return result
