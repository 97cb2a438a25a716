"""Rate limits around a call: smooth (GCRA), exact (a sliding window), or several at once; first come, first served."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, TypeVarTuple, final

from trio import current_time
from trio.lowlevel import checkpoint

from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.argument import count
from trio_orchestrator.algorithms.gcra import Gcra
from trio_orchestrator.algorithms.sliding_log import SlidingLog
from trio_orchestrator.policies.line import give_back, may_wait, refusal, refuse, retime, settle, take, wait
from trio_orchestrator.policies.rate_limit import RateLimit, RateStatistics

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class RateLimiter(RateLimit):
    """Let through `limit` units in `per` seconds, evenly spaced, and at most `burst` at once: GCRA.

    In any time `t` at most `burst + limit * t / per` units are let in; if this program itself was late (a timer, a long
    computation), it makes up for 2 % of `per` at most. Costs may be fractions. A limit at module level may be used in
    one run of Trio after another.

    Args:
        limit: Units in `per` seconds, > 0; `math.inf` for no limit.
        per: Seconds, > 0.
        burst: How many units may come at once after a rest, >= 1. Default: 1, one by one.
        max_waiting: How many calls may wait; those beyond are refused. 0: none waits.
        max_wait: The longest that a call may have to wait, in seconds. The wait is known exactly beforehand, so a call
            that would wait longer is refused at once; one that waits already, when a change makes it so.
        name: For errors and `repr`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: One is out of its range, or NaN.
    """

    __slots__ = ("_rule",)

    def __init__(
        self,
        limit: float,
        per: float = 1.0,
        *,
        burst: float | None = None,
        max_waiting: float = math.inf,
        max_wait: float = math.inf,
        name: str = "rate limit",
    ) -> None:
        self._rule = Gcra(limit, per, 1.0 if burst is None else burst)
        super().__init__(self._rule, name, max_waiting, max_wait)

    @property
    def limit(self) -> float:
        """How many units may be taken in `per` seconds."""
        return self._rule.limit

    @property
    def per(self) -> float:
        """The time for which `limit` holds, in seconds."""
        return self._rule.per

    def change(self, *, limit: float | None = None, per: float | None = None, burst: float | None = None) -> None:
        """Change the rate; None keeps a value. Those who wait are timed anew. Sync.

        What has been taken weighs the same number of units as before, `burst` at most. A call that waits for more than
        the new `burst` is refused.

        Raises:
            ValueError: An argument is out of its range; nothing has changed.
        """
        rule, now = self._rule, current_time()
        rule.change(
            now,
            rule.limit if limit is None else limit,
            rule.per if per is None else per,
            rule.burst if burst is None else burst,
        )
        retime(self._line, now, shrunk=burst is not None)

    # The ways that need no line are written out: they cost little more than the arithmetic and the clock.

    async def acquire(self, cost: float = 1) -> None:
        """Wait until `cost` may be taken, and take it. Always a checkpoint.

        Cancelled, it takes nothing, also in the checkpoint of a call that did not have to wait.

        Args:
            cost: How many units this call is worth, > 0; at most `burst`.

        Raises:
            RateLimitedError: `max_waiting` calls wait already, or the wait would be longer than `max_wait`.
            ValueError: `cost` could never be taken at once.
        """
        now, rule = current_time(), self._rule
        if cost != 1 or (tat := rule.tat) - now > rule.reach or not (line := self._line).clear:
            await RateLimit.acquire(self, cost)
            return
        if tat < now:
            tat = now
        token = rule.tat = tat + rule.interval
        line.granted += 1
        try:
            await checkpoint()
        except BaseException:
            give_back((line,), (1,), ((token,),))
            raise

    def acquire_nowait(self, cost: float = 1) -> None:
        """Take `cost` now, if nobody waits and the limit allows it. Sync.

        Args:
            cost: How many units this call is worth, > 0; at most `burst`.

        Raises:
            RateLimitedError: It would have to wait. `retry_after` is exact, behind those who wait already.
            ValueError: `cost` could never be taken at once.
        """
        now, rule = current_time(), self._rule
        if cost != 1 or (tat := rule.tat) - now > rule.reach or not (line := self._line).clear:
            RateLimit.acquire_nowait(self, cost)
            return
        if tat < now:
            tat = now
        rule.tat = tat + rule.interval
        line.granted += 1


@final
class SlidingWindow(RateLimit):
    """Let through at most `limit` units in *every* window of length `per`, at any phase: exact, and not smooth.

    A window is half-open: what was let in at `t` weighs until `t + per` and no longer then. It is exact about when a
    call is let in; what the call does then, and when its request arrives elsewhere, is not known here. Costs are whole.
    Remembers the last `limit` units at most. A limit at module level may be used in one run of Trio after another.

    Args:
        limit: Whole units in a window, >= 1; `math.inf` for no limit.
        per: The length of a window in seconds, > 0.
        max_waiting: How many calls may wait; those beyond are refused. 0: none waits.
        max_wait: The longest that a call may have to wait, in seconds. The wait is known exactly beforehand, so a call
            that would wait longer is refused at once; one that waits already, when a change makes it so.
        name: For errors and `repr`.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: One is out of its range, or NaN.
    """

    __slots__ = ("_rule",)

    def __init__(
        self,
        limit: float,
        per: float = 1.0,
        *,
        max_waiting: float = math.inf,
        max_wait: float = math.inf,
        name: str = "rate limit",
    ) -> None:
        self._rule = SlidingLog(limit, per)
        super().__init__(self._rule, name, max_waiting, max_wait)

    @property
    def limit(self) -> float:
        """How many units may be taken in a window."""
        return self._rule.limit

    @property
    def per(self) -> float:
        """The length of a window, in seconds."""
        return self._rule.per

    def change(self, *, limit: float | None = None, per: float | None = None) -> None:
        """Change the limit; None keeps a value. Those who wait are timed anew. Sync.

        What has been let in keeps its time; a longer `per` is exact for windows that begin from now minus the old one.
        A call that waits for more than the new `limit` is refused.

        Raises:
            ValueError: An argument is out of its range; nothing has changed.
        """
        rule, now = self._rule, current_time()
        rule.change(now, rule.limit if limit is None else limit, rule.per if per is None else per)
        retime(self._line, now, shrunk=limit is not None)

    def _price(self, cost: float) -> float:
        if cost != 1:
            count("cost", cost, 1)
        return super()._price(cost)


@final
class RateLimits(Policy):
    """Several rate limits at once, all or nothing: ten a second *and* a hundred a minute; calls *and* tokens.

    A call is let in when all of them allow it, and then takes from all in one breath; while it waits it holds nothing
    of any. It stands in the line of each, first come, first served, also among those who ask a member alone; since the
    one that came first is never held up by another, there is no deadlock. Every member counts every call.

    `max_waiting` and `max_wait` are those of the members: the strictest decides.

    Args:
        limiters: At least one; each once.

    Raises:
        TypeError: One is not a `RateLimiter` or a `SlidingWindow`.
        ValueError: There is none, or one twice.
    """

    __slots__ = ("_limiters", "_lines")

    def __init__(self, *limiters: RateLimit) -> None:
        for limiter in limiters:
            if not isinstance(limiter, RateLimit):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"limiters must be RateLimiter or SlidingWindow objects, got {limiter!r}")
        if not limiters or len(set(limiters)) < len(limiters):
            raise ValueError(f"limiters must be at least one, and each once, got {limiters!r}")
        self._limiters = limiters
        self._lines = tuple(limiter._line for limiter in limiters)

    @property
    def limiters(self) -> tuple[RateLimit, ...]:
        """The members."""
        return self._limiters

    def parameters(self) -> dict[str, object]:
        """Return its members."""
        return {"limiters": self._limiters}

    @property
    def is_idle(self) -> bool:
        """Whether all members are as good as new. Only inside a run of Trio."""
        return all(limiter.is_idle for limiter in self._limiters)

    def __repr__(self) -> str:
        return f"RateLimits({', '.join(map(repr, self._limiters))})"

    def statistics(self) -> tuple[RateStatistics, ...]:
        """Return the statistics of the members."""
        return tuple(limiter.statistics() for limiter in self._limiters)

    async def acquire(self, cost: float | Sequence[float] = 1) -> None:
        """Wait until `cost` may be taken from every limit, and take it. Always a checkpoint.

        Cancelled, it takes nothing of any.

        Args:
            cost: What the call is worth to all of them, or to each: `(1, 350)`.

        Raises:
            RateLimitedError: Too many wait in one of the lines, or the wait would be too long for one of them.
            ValueError: `cost` could never be taken at once, or has not one number for each.
        """
        costs, now = self._price(cost), current_time()
        if (tokens := take(self._lines, costs, now)) is not None:
            await settle(self._lines, costs, tokens)
        elif may_wait(self._lines, costs, now):
            await wait(self._lines, costs, now)
        else:
            await refuse(self._lines, costs, now)

    def acquire_nowait(self, cost: float | Sequence[float] = 1) -> None:
        """Take `cost` from every limit now, if nobody waits and all allow it. Sync.

        Args:
            cost: What the call is worth to all of them, or to each: `(1, 350)`.

        Raises:
            RateLimitedError: It would have to wait, and nothing was taken. `retry_after` is exact, and the name is that
                of the limit that takes longest.
            ValueError: `cost` could never be taken at once, or has not one number for each.
        """
        costs, now = self._price(cost), current_time()
        if take(self._lines, costs, now) is None:
            raise refusal(self._lines, costs, now)

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Wait until one unit may be taken from every limit, and call `fn(*args)`.

        Has the checkpoints of `fn`, and one of its own if it waits. Cancelled while it waits, it takes nothing.

        Raises:
            RateLimitedError: Too many wait in one of the lines, or the wait would be too long for one of them.
        """
        costs, now = (1,) * len(self._lines), current_time()
        if take(self._lines, costs, now) is None:
            if not may_wait(self._lines, costs, now):
                raise refusal(self._lines, costs, now)
            await wait(self._lines, costs, now)
        return await fn(*args)

    def _price(self, cost: float | Sequence[float]) -> tuple[float, ...]:
        costs = tuple(cost) if isinstance(cost, Sequence) else (cost,) * len(self._limiters)
        if len(costs) != len(self._limiters):
            raise ValueError(f"cost must have one number for each of {len(self._limiters)} limits, got {cost!r}")
        return tuple(limiter._price(each) for limiter, each in zip(self._limiters, costs, strict=True))
