"""What every rate limit does: a rule, a line before it, and what a server says."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple, final

from trio import current_time

from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.argument import above, at_least, count
from trio_orchestrator.algorithms.gcra import Reply
from trio_orchestrator.policies.forecast import foresee
from trio_orchestrator.policies.line import Line, Rule, may_wait, refusal, refuse, retime, settle, take, wait

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
@dataclass(frozen=True, slots=True)
class RateStatistics:
    """A limit at one moment. Everybody who asked is counted once: granted, refused, cancelled, or still waiting."""

    limit: float
    """Units in `per` seconds."""
    per: float
    """Seconds."""
    burst: float
    """The most that can be taken at once."""
    waiting: int
    """Calls that wait."""
    granted: int
    """Calls that were let in."""
    refused: int
    """Calls that ended with a `RateLimitedError`."""
    cancelled: int
    """Calls that were cancelled before they were let in, or in the very checkpoint of it: they took nothing."""


class RateLimit(Policy):
    """What `RateLimiter` and `SlidingWindow` have in common. As a policy it lets each call wait, and then makes it.

    * First come, first served, whatever the costs: a call that must wait for much is not overtaken by one that asks for
      little, `acquire_nowait` does not push in, and nobody starves.
    * A call that waits sleeps once, and is woken once, when it has been let in. Only the first in the line has a timer:
      no two wake in order to see which of them was lucky.
    * Cancelled while it waits, a call gives its place back, and those behind it move up.
    * The rate may be changed at any time; those who wait are timed anew.
    """

    __slots__ = ("_began_with", "_line")

    _line: Line

    def __init__(self, rule: Rule, name: str, max_waiting: float, max_wait: float) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name must be a str, got {name!r}")
        max_waiting = count("max_waiting", max_waiting, 0)
        self._line = Line(rule, name, max_waiting, at_least("max_wait", max_wait, 0))
        self._began_with = repr(rule)

    def parameters(self) -> dict[str, object]:
        """Return what it was made with; the rate as it is now."""
        line = self._line
        told: dict[str, object] = {"limit": self.limit, "per": self.per, "burst": self.burst}
        return {**told, "max_waiting": line.max_waiting, "max_wait": line.max_wait, "name": line.name}

    @property
    def name(self) -> str:
        """What errors call it."""
        return self._line.name

    @property
    @abstractmethod
    def limit(self) -> float:
        """How many units may be taken in `per` seconds."""

    @property
    @abstractmethod
    def per(self) -> float:
        """The time for which `limit` holds, in seconds."""

    @property
    def burst(self) -> float:
        """The most that can be taken at once."""
        return self._line.rule.capacity

    @property
    def is_idle(self) -> bool:
        """Whether it is as good as new, so that it may be forgotten and made again. Only inside a run of Trio.

        Nobody waits, all that was taken has expired, nothing that a server said is in force, and the rate is the one it
        was made with. Counts do not matter.
        """
        line, now = self._line, current_time()
        told = line.allowance is not None and not line.allowance.is_idle(now)
        return not (line.waiters or told) and line.rule.is_idle(now) and repr(line.rule) == self._began_with

    def __repr__(self) -> str:
        line = self._line
        told = "" if line.allowance is None else ", told by a server"
        return f"<{type(self).__name__} {line.name!r} {line.rule!r}: {len(line.waiters)} waiting{told}>"

    def statistics(self) -> RateStatistics:
        """Return the configuration and the counts at this moment."""
        line = self._line
        return RateStatistics(
            self.limit, self.per, self.burst, len(line.waiters), line.granted, line.refused, line.cancelled
        )

    # ---------------------------------------------------------------------------------------------- asking

    async def acquire(self, cost: float = 1) -> None:
        """Wait until `cost` may be taken, and take it. Always a checkpoint.

        Cancelled, it takes nothing, also in the checkpoint of a call that did not have to wait.

        Args:
            cost: How many units this call is worth, > 0; at most `burst`.

        Raises:
            RateLimitedError: `max_waiting` calls wait already, or the wait would be longer than `max_wait`.
            ValueError: `cost` could never be taken at once.
        """
        lines, costs, now = (self._line,), (self._price(cost),), current_time()
        if (tokens := take(lines, costs, now)) is not None:
            await settle(lines, costs, tokens)
        elif may_wait(lines, costs, now):
            await wait(lines, costs, now)
        else:
            await refuse(lines, costs, now)

    def acquire_nowait(self, cost: float = 1) -> None:
        """Take `cost` now, if nobody waits and the limit allows it. Sync.

        Args:
            cost: How many units this call is worth, > 0; at most `burst`.

        Raises:
            RateLimitedError: It would have to wait. `retry_after` is exact, behind those who wait already.
            ValueError: `cost` could never be taken at once.
        """
        line, cost, now = self._line, self._price(cost), current_time()
        if not line.take_now(now, cost):
            raise refusal((line,), (cost,), now)

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Wait until one unit may be taken, and call `fn(*args)`.

        Has the checkpoints of `fn`, and one of its own if it waits. Cancelled while it waits, it takes nothing.

        Raises:
            RateLimitedError: `max_waiting` calls wait already, or the wait would be longer than `max_wait`.
        """
        line, now = self._line, current_time()
        if not line.take_now(now, 1):
            if not may_wait((line,), (1,), now):
                raise refusal((line,), (1,), now)
            await wait((line,), (1,), now)
        return await fn(*args)

    def reply(self, cost: float = 1) -> Reply:
        """Return what `acquire_nowait(cost)` would find, as five numbers, and take nothing. Sync.

        Raises:
            ValueError: `cost` could never be taken at once.
        """
        line, costs, now = self._line, (self._price(cost),), current_time()
        at = foresee((line,), now).place((line,), costs, now)[0]
        remaining = 0.0 if line.waiters else min(rule.remaining(now) for rule in line.rules())
        reset_after = max(rule.reset_after(now) for rule in line.rules())
        return Reply(at <= now, self.burst, remaining, max(0.0, at - now), reset_after)

    # ------------------------------------------------------------------------------------ what a server says

    def hold(self, seconds: float) -> None:
        """Let nobody in for so long from now: a server said `Retry-After`. An earlier word for longer stays. Sync.

        Raises:
            ValueError: `seconds` is negative, infinite or NaN.
        """
        seconds, now = at_least("seconds", seconds, 0, finite=True), current_time()
        self._line.told().hold(now, seconds)
        retime(self._line, now)

    def observe(self, remaining: float, reset_after: float) -> None:
        """Let in no more than `remaining` units in the next `reset_after` seconds: a server's `RateLimit-*` headers.

        It comes on top of the limit itself, and the last word counts. Sync.

        Raises:
            ValueError: An argument is negative or NaN, or `reset_after` is infinite.
        """
        remaining = at_least("remaining", remaining, 0)
        reset_after, now = at_least("reset_after", reset_after, 0, finite=True), current_time()
        self._line.told().observe(now, remaining, reset_after)
        retime(self._line, now)

    # --------------------------------------------------------------------------------------------- inside

    def _price(self, cost: float) -> float:
        """Return the cost, or raise: it must be more than nothing, and possible."""
        if cost != 1:
            above("cost", cost, 0, finite=True)
        if cost > self._line.rule.capacity:
            raise ValueError(f"cost must be <= {self._line.rule.capacity:g}, got {cost!r}")
        return cost
