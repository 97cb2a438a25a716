"""A limit on calls in flight that finds itself: it learns from each call how many the other side can serve at once."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple, final

import trio

from trio_orchestrator.abc import Instrument, Limit, Policy, RandomSource, Sample
from trio_orchestrator.algorithms.aimd import AIMD
from trio_orchestrator.algorithms.argument import random_source
from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.block import Hooks, emit
from trio_orchestrator.event import LimitChanged
from trio_orchestrator.policies.failure import On
from trio_orchestrator.policies.slot import AsyncPlace, Line, Place, PlaceNowait, tokens_of
from trio_orchestrator.policies.verdict import FAILURE, NEUTRAL, SUCCESS, Judge, Verdict

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
@dataclass(frozen=True, slots=True)
class AdaptiveStatistics:
    """A snapshot of an adaptive limiter. The last four count attempts and refusals so far."""

    name: str
    limit: int | float
    """How many attempts may be in flight: the whole number in force."""
    exact: float
    """Where the rule is, with its fraction."""
    in_flight: int
    """How many are; more than `limit` for a while after it fell."""
    waiting: int
    """How many wait for a slot."""
    rtt: float
    """Seconds that the last attempt took that was answered; 0.0 if none was yet."""
    ok: int
    """Attempts that were answered."""
    dropped: int
    """Attempts that the other side failed, refused, or did not answer in time."""
    ignored: int
    """Attempts that say nothing: cancelled by somebody, refused further in, or `ignore()`d."""
    refused: int
    """How many were refused a slot."""


class _Slot(Place):
    """One attempt: it is measured from the moment the slot is held, and ends in one of three ways."""

    __slots__ = ("_in_flight", "_limiter", "_start", "_verdict")

    def __init__(self, limiter: AdaptiveLimiter) -> None:
        super().__init__(limiter._line)
        self._limiter: AdaptiveLimiter = limiter
        self._verdict: Verdict | None = None
        self._start: float = 0.0
        self._in_flight: int = 0

    def drop(self) -> None:
        """Say that the other side is overloaded, whatever the block does from here: a 429, an error in a result."""
        self._verdict = FAILURE

    def ignore(self) -> None:
        """Say that this attempt tells nothing, whatever the block does from here: a cache hit, an early return."""
        self._verdict = NEUTRAL

    def _begin(self) -> None:
        self._start = trio.current_time()
        self._in_flight = self._line.in_flight

    def _end(self, error: BaseException | None) -> None:
        settle = partial(self._limiter._settle, self._start, trio.current_time(), self._in_flight)
        if self._verdict is not None:
            settle(self._verdict)
        elif error is None:
            settle(SUCCESS)
        else:
            self._limiter._report(error, settle)


@final
class Slot(_Slot, AsyncPlace):
    """A slot of an `AdaptiveLimiter`: `async with limiter.slot() as slot:`. Entered once."""

    __slots__ = ()


@final
class SlotNowait(_Slot, PlaceNowait):
    """A slot of an `AdaptiveLimiter` that is free at once: `with limiter.slot_nowait() as slot:`. Entered once."""

    __slots__ = ()


@final
class AdaptiveLimiter(Policy):
    """Let as many attempts be in flight as the other side can serve, which `limit` finds out from how they end.

    Each attempt ends in one of three ways:

    * *ok*: it returned; its latency counts.
    * *dropped*: it failed as in `on`, its result is a failure for `classify`, `slot.drop()` was called, or a time-out
      **of this library** ended it, inside or around. It shows overload; its latency counts for nothing.
    * *ignored*: somebody cancelled it, an inner policy refused it, it failed as in `neutral` or with an exception
      outside `on`, or `slot.ignore()` was called. Nothing is learned.

    A sample is one attempt. It begins when the slot is held, so no wait in line is in it; put the limiter inside a
    `Retry`, and no pause between attempts is. The limit in force is a whole number, and changes only when the rule has
    moved by 1 at least, so that it does not flutter; see `AIMD`, `Vegas`, `Gradient2`, `EnvoyGradient` and `ARC`.

        async with limiter.slot() as slot:     # or: await limiter.call(fetch, url)
            response = await fetch(url)
            if response.status == 429:
                slot.drop()

    Waiting is in line, first come, first served; who ends hands its slot over. When the limit falls, nothing is
    interrupted: no attempt starts until fewer than the new limit are in flight. When it rises, all start that now fit.
    The slots are the tokens of `limiter.tokens`, a `trio.CapacityLimiter`: a queue that runs on it and calls through
    `limiter.measured` is limited in the same way. One that outlives a run of Trio begins anew in the next one, whose
    clock is another.

    Args:
        limit: The rule.
        on: Which exceptions show overload: a type, a tuple of types or a predicate. By default every `Exception`.
        neutral: Which of them say nothing after all, in the same form.
        classify: Tells of a *result* whether it shows overload; only for `call` and `wrap`.
        max_waiting: How many may wait for a slot; 0: none, `math.inf`: any number.
        max_wait: How long one may wait, in seconds; 0: not at all, `math.inf`: for ever.
        name: For events, errors and `repr`.
        instruments: Listeners: `limit_changed`.
        rng: Draws the jitter of rules that have any; default: the library's own source.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of its range, or NaN.
    """

    __slots__ = (
        "_changed",
        "_control",
        "_counts",
        "_judge",
        "_line",
        "_rng",
        "_rtt",
        "_rule",
        "_settled_at",
        "measured",
    )

    def __init__(
        self,
        *,
        limit: Limit = AIMD(),  # noqa: B008 - an immutable value
        on: On = Exception,
        neutral: On = (),
        classify: Callable[[Any], bool] | None = None,
        max_waiting: float = math.inf,
        max_wait: float = math.inf,
        name: str = "adaptive limit",
        instruments: Sequence[Instrument] = (),
        rng: RandomSource | None = None,
    ) -> None:
        if not isinstance(limit, Limit):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"limit must be a Limit, such as AIMD(), got {limit!r}")
        random_source("rng", rng)
        self._judge = Judge(on, neutral, classify)
        self._rule = limit
        self._rng = CHANCE if rng is None else rng
        self._control = limit.control(self._rng)
        self._settled_at = -math.inf
        self._line = Line(self._control.limit, max_waiting=max_waiting, max_wait=max_wait, name=name)
        self._changed = Hooks(instruments).of("limit_changed")
        self._counts = dict.fromkeys(Verdict, 0)
        self._rtt = 0.0
        self.measured: Final[Policy] = _Measured(self)
        """Measures a call without taking a slot: for a call that holds a token of `tokens` already, as in a queue."""

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        return {"limit": self._rule, **self._judge.parameters(), **self._line.parameters()}

    def __repr__(self) -> str:
        line = self._line
        return f"<AdaptiveLimiter {line.name!r}: {line.in_flight} of {self.limit} in flight, {line.waiting} waiting>"

    @property
    def name(self) -> str:
        """What it is called in events and errors."""
        return self._line.name

    @property
    def tokens(self) -> trio.CapacityLimiter:
        """The limiter whose tokens are the slots. Its number of tokens is set by the rule; do not set it."""
        return self._line.tokens

    @property
    def limit(self) -> int | float:
        """How many attempts may be in flight now: the whole number in force."""
        return self._line.tokens.total_tokens

    def slot(self) -> Slot:
        """Return a slot to be held for one attempt: `async with limiter.slot() as slot:`.

        Entering waits in line and is a checkpoint; if it is cancelled, nothing is held and nothing learned. Leaving
        does not block.

        Raises:
            LimitExceededError: On entering: `max_waiting` others wait already, or `max_wait` has passed.
        """
        return Slot(self)

    def slot_nowait(self) -> SlotNowait:
        """Return a slot to be held for one attempt, if one is free at once: `with limiter.slot_nowait() as slot:`.

        Sync.

        Raises:
            trio.WouldBlock: On entering: none is free, or others wait for one.
        """
        return SlotNowait(self)

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)` in a slot, learn from how it ends, and return its result.

        Has the checkpoints of `fn`, and one of its own only if it waits or refuses. Cancelling it gives up the place in
        line, or cancels `fn`.

        Raises:
            LimitExceededError: `max_waiting` others wait already, or `max_wait` has passed.
        """
        token = object()
        if not self._line.take_nowait(token):
            await self._line.wait(token)
        try:
            return await self.measured.call(fn, *args)
        finally:
            self._line.give(token)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, and nobody waits."""
        return self._line.is_idle

    def statistics(self) -> AdaptiveStatistics:
        """Return a snapshot. Sync, and cheap."""
        line, counts = self._line, self._counts
        return AdaptiveStatistics(
            name=line.name,
            limit=self.limit,
            exact=self._control.limit,
            in_flight=line.in_flight,
            waiting=line.waiting,
            rtt=self._rtt,
            ok=counts[SUCCESS],
            dropped=counts[FAILURE],
            ignored=counts[NEUTRAL],
            refused=line.refused,
        )

    def _report(self, error: BaseException, settle: Callable[[Verdict], None]) -> None:
        """Have an attempt settled that raised `error`. What is no failure says nothing: how far did it get?"""
        if not isinstance(error, Exception):  # a time-out around us will make its own error
            self._judge.report(error, settle)
            return
        try:
            verdict = self._judge.of_error(error)
        except BaseException:  # a predicate of the user's
            settle(NEUTRAL)
            raise
        settle(NEUTRAL if verdict is SUCCESS else verdict)

    def _settle(self, start: float, end: float, in_flight: int, verdict: Verdict) -> None:
        self._counts[verdict] += 1
        if verdict is NEUTRAL:
            return
        if (now := trio.current_time()) < self._settled_at:  # another run, with a clock of its own
            self._control = self._rule.control(self._rng)
        self._settled_at = now
        if verdict is SUCCESS:
            self._rtt = end - start
        self._apply(*self._control.update(Sample(start, end - start, in_flight, verdict is FAILURE)))

    def _apply(self, exact: float, reason: str) -> None:
        old = self.limit
        if abs(exact - old) < 1:
            return
        new = self._line.tokens.total_tokens = tokens_of(exact)
        if self._changed and new != old:
            emit(self._changed, LimitChanged(old, new, self.name, reason))


@final
class _Measured(Policy):
    __slots__ = ("_limiter",)

    def __init__(self, limiter: AdaptiveLimiter) -> None:
        self._limiter = limiter

    def __repr__(self) -> str:
        return f"<measured by {self._limiter!r}>"

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)`, have the limiter learn from how it ends, and return its result.

        Has the checkpoints of `fn` and adds none. Cancelling it cancels `fn`.
        """
        limiter = self._limiter
        start, in_flight = trio.current_time(), max(1, limiter._line.in_flight)
        try:
            result = await fn(*args)
        except BaseException as error:
            limiter._report(error, partial(limiter._settle, start, trio.current_time(), in_flight))
            raise
        verdict = NEUTRAL
        try:
            verdict = limiter._judge.of_result(result)
        finally:
            limiter._settle(start, trio.current_time(), in_flight, verdict)
        return result
