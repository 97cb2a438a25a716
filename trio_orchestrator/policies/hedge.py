"""A second copy of a call that takes long: the first answer wins, the others are cancelled and awaited."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, TypeVarTuple, final

from trio_orchestrator.abc import Budget, Instrument, Policy
from trio_orchestrator.algorithms.argument import at_least, count
from trio_orchestrator.algorithms.quantile import Quantile
from trio_orchestrator.block import Hooks
from trio_orchestrator.policies.decision import callee, name_of
from trio_orchestrator.policies.race import Race, Tally

__all__ = ["Hedge", "HedgeStatistics", "Quantile"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
@dataclass(frozen=True, slots=True)
class HedgeStatistics:
    """What a `Hedge` counts. At rest `in_flight` and `running` are 0."""

    calls: int
    """How many calls have begun."""
    in_flight: int
    """How many of them have not ended."""
    running: int
    """How many originals and copies run now, losers that still unwind included."""
    hedged: int
    """How many calls got at least one copy."""
    copies: int
    """How many copies were started."""
    won_by_copy: int
    """How many calls were answered by a copy first."""
    refused: int
    """How often the budget refused a copy."""
    late_failures: int
    """How many raised something that could no longer change the outcome. Each is a warning in the log."""


@final
class Hedge(Policy):
    """Start another copy of a call that takes long, and return the first result.

    The call runs in a task. When `after` seconds have passed without an end, a copy is started beside it, and another
    one each `after` seconds, up to `copies`. **The function must be safe to run twice at the same time.**

    **Who wins.** The first *result*. The losers are cancelled and awaited before the call returns: nothing outlives it.
    A result that a loser returns nevertheless is dropped, so whoever opens something must close it when cancelled.
    A failure does not win: it waits for those that still run. If all that were started fail, the failure of the
    original is raised, bare, and those of the copies are dropped, as a retry drops all but the last. If the original
    fails before a copy was started, that is raised at once: a hedge is against latency, a `Retry` against failures.
    A refusal inside (a `RejectedError`: an open circuit, a full bulkhead) is a failure like any other, and only of the
    copy that it met.

    **The budget** is asked (`withdraw(None)`) before each copy. A refusal suppresses that copy and all further ones of
    this call, and never touches those that run (failsafe-go/failsafe-go#141). Each call begins with `begin()`, and a
    successful one ends with `deposit(1)`: a copy is not paid back, since the other side did the work.

    **Verdicts.** For a guard inside, the end of a loser is neutral, also if a time-out of ours further out fires while
    it unwinds; a time-out of ours around the hedge is a failure for every copy that it ends. Each copy passes the
    guards inside by itself, and takes its own slot.

    **Cancellation** from outside cancels all copies, is awaited, and comes out as `trio.Cancelled`. If a copy returns
    nevertheless, or has already won while losers unwind, its result is returned and nothing is lost. What the original
    raises while it unwinds comes out instead.

    **Late failures.** What a loser raises after it has lost, or a copy after the call was cancelled, cannot change the
    outcome. It is a warning in the log, with its traceback, and counted in `statistics().late_failures`. Only a
    `KeyboardInterrupt`, `SystemExit` or the like, in whichever copy, ends all and comes out bare in any case.

    **Context.** Each copy runs in its own copy of the caller's context: what it sets in context variables is lost,
    the winner's too.

    Polly starts 1 copy after 2 s by default; Dean and Barroso ("The Tail at Scale", 2013) advise the 95th percentile.
    Latency is measured from the beginning of the *call*, not of the copy that won: a call counts as longer than `after`
    exactly if its original was, so hedging does not shorten its own threshold.

    Args:
        after: Seconds without an end before a copy starts, >= 0; `math.inf` for never. Or a `Quantile` of the latencies
            of successful calls, which is read when a call begins.
        copies: How many copies at most beside the original, >= 1 and finite.
        budget: What is asked before each copy.
        name: What is called, for events; by default the name of the function.
        instruments: Listeners for `hedge_started`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is out of range or NaN.
    """

    __slots__ = ("_after", "_budget", "_copies", "_name", "_started", "_tally")

    def __init__(
        self,
        *,
        after: float | Quantile,
        copies: int = 1,
        budget: Budget | None = None,
        name: str = "",
        instruments: Sequence[Instrument] = (),
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"budget must be a Budget such as RetryBudget(), got {budget!r}")
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name must be a str, got {name!r}")
        self._after = after if isinstance(after, Quantile) else at_least("after", after, 0)
        self._copies = _finite_count("copies", copies)
        self._budget = budget
        self._name = name
        self._started = Hooks(instruments).of("hedge_started")
        self._tally = Tally(self._after)

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        return {"after": self._after, "copies": self._copies, "budget": self._budget, "name": self._name}

    def __repr__(self) -> str:
        after = self._after if isinstance(self._after, Quantile) else f"{self._after:g}"
        return f"Hedge(after={after}, copies={self._copies}, in_flight={self._tally.in_flight})"

    @property
    def after(self) -> float | Quantile:
        """Seconds without an end before a copy starts, or the rule for them."""
        return self._after

    @property
    def after_now(self) -> float:
        """After how many seconds a call that began now would get a copy. Needs a running Trio if `after` is a rule."""
        return self._tally.after()

    @property
    def copies(self) -> int:
        """How many copies at most beside the original."""
        return self._copies

    @property
    def budget(self) -> Budget | None:
        """What is asked before each copy."""
        return self._budget

    @property
    def is_idle(self) -> bool:
        """Whether no call is in flight."""
        return self._tally.in_flight == 0

    def statistics(self) -> HedgeStatistics:
        """Return what has been counted so far."""
        tally = self._tally
        return HedgeStatistics(
            calls=tally.calls,
            in_flight=tally.in_flight,
            running=tally.running,
            hedged=tally.hedged,
            copies=tally.copies,
            won_by_copy=tally.wins,
            refused=tally.refused,
            late_failures=tally.late_failures,
        )

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)`, more than once if it takes long, and return the first result.

        Always a checkpoint, also if `fn` has none. Cancelling it cancels all copies, and waits for their end.

        Raises:
            Exception: What the original raised; every copy has failed too.
        """
        self._tally.calls += 1
        self._tally.in_flight += 1
        try:
            if self._budget is not None:
                self._budget.begin()
            result = await self._race(fn, args).run(self._copies)
            if self._budget is not None:
                self._budget.deposit(1)
            return result
        finally:
            self._tally.in_flight -= 1

    def _race(self, fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> Race[T]:
        name = self._name or name_of(callee(fn, args))
        return Race(partial(fn, *args), name, self.after_now, self._budget, self._started, self._tally)

    def _sharing(self, budget: Budget) -> Hedge:  # pyright: ignore[reportUnusedFunction] - for a stack
        """Return this hedge with another budget. The two share what they have learned and counted."""
        hedge = copy(self)
        hedge._budget = budget
        return hedge


def _finite_count(name: str, value: object) -> int:
    number = count(name, value, 1)
    if number == math.inf:
        raise ValueError(f"{name} must be finite, got {value!r}")
    return int(number)
