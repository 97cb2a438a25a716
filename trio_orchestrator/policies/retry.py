"""Repeat a call that failed: bounded in attempts and time, jittered, and never against the caller's cancellation."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from math import inf
from typing import Any, TypeGuard, TypeVar, TypeVarTuple, final

from trio import current_effective_deadline, current_time, sleep
from trio.lowlevel import checkpoint

from trio_orchestrator.abc import Backoff, Budget, Instrument, Policy, RandomSource
from trio_orchestrator.algorithms.argument import above, count, plain_function
from trio_orchestrator.algorithms.backoff import FullJitter, bad_delay
from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.block import Hooks, emit, raise_untouched
from trio_orchestrator.errors import RejectedError
from trio_orchestrator.event import GaveUp, RetryScheduled
from trio_orchestrator.policies.attempt import Attempt, Attempts, Run
from trio_orchestrator.policies.decision import (
    ATTEMPTS,
    BUDGET,
    DEADLINE,
    GIVEN_UP,
    NO_RESULT,
    NOT_RETRYABLE,
    Decision,
    Name,
    callee,
    name_of,
    settle,
    sign,
)
from trio_orchestrator.policies.failure import EXHAUSTIONS, GiveUp, On, is_misfit, leaves, mark_permanent, matcher

__all__ = ["NO_RESULT", "Attempt", "Attempts", "Decision", "GiveUp", "Retry"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CLASSIC = FullJitter(base=1.0, cap=30.0)
_WISHFUL: tuple[type[BaseException], ...] = (RejectedError, ExceptionGroup)


@final
class Retry(Policy):
    """Repeat a call while it fails in a way named by `on`, with growing, jittered pauses.

    Three forms, one behaviour::

        result = await retry.call(fetch, url)

        @retry.wrap
        async def fetch(url): ...

        async for attempt in retry:
            with attempt:
                return await fetch(url)

    The object is immutable and shared by all tasks; each call, and each `async for`, makes its own run state.

    **What is repeated.** An exception that `on` covers, a result that `on_result` calls bad, and an attempt that our
    `attempt_timeout` ended. A group counts if all its leaves do. Never: `trio.Cancelled`, `KeyboardInterrupt`,
    `SystemExit` and every other `BaseException`, an error that is marked permanent, an error that an inner retry has
    already repeated in vain, the total `timeout`, and (in `call` and `wrap`) a `TypeError` of the call itself: wrong
    arguments, or a function that returns nothing to await.

    **When it ends.** After `attempts`; or at once, with the reason "deadline", if the next attempt would not start
    before `timeout` *and the caller's own effective deadline*: nobody sleeps into a certain cancellation. The last
    exception itself is raised, bare, with a note (`gave up after 4 attempts in 3.1 s: deadline`); a bad result is
    returned. An error that is not retryable at the first attempt gets no note.

    **Pauses.** `max(backoff, wish)`, where the wish is what `retry_after` finds in the failure, the `retry_after` of a
    `RejectedError`, or `attempt.retry_after()`; of several the longest. The cap of the backoff does not shorten a wish,
    only a deadline can refuse it. A wish of 0 is valid and adds nothing; a negative, infinite or nonsensical one is
    ignored.

    **Cancellation.** A cancellation from outside ends the attempt, or the pause, and goes out: never caught, never
    repeated, never converted. Every pause is a checkpoint, also one of 0 s; a first attempt adds none to the body's.

    The defaults are the classic figures of HTTP clients: three retries, which wait 3.5 s in the mean.

    Args:
        on: An exception type, a tuple of types (may be empty), or a plain predicate `(exception) -> bool`.
        on_result: True for a result that is to be repeated. The body of a loop asks: `attempt.refuses(result)`.
        attempts: How many attempts in all, the first included; `math.inf` is possible.
        backoff: The pauses.
        attempt_timeout: Seconds an attempt may take; `math.inf` for no limit. The attempt is cancelled, and counts as a
            retryable `trio.TooSlowError`. What its body raises while it cleans up counts instead.
        timeout: Seconds for all attempts and pauses together. Ends an attempt with a `trio.TooSlowError` that names
            it, and whose `__cause__` is the last failure.
        budget: Asked before a retry that would otherwise happen.
        retry_after: A plain function: from an exception (of a group: each leaf) or a bad result to the seconds that
            the other side wishes, or None. See `http_retry_after`. Not asked when our time-out ended the attempt.
        on_retry: A plain function, called with a `RetryScheduled` once a retry is decided, before the pause. What it
            raises ends the call.
        retry_exhausted: Repeat also what an inner retry has given up on.
        rng: Where jitter comes from; the library's own `random.Random` by default.
        instruments: Listeners for `retry_scheduled` and `gave_up`.

    Raises:
        TypeError: An argument has the wrong type; async functions are refused where a plain one is called.
        ValueError: A number is out of range or NaN.
    """

    __slots__ = (
        "_attempt_timeout",
        "_attempts",
        "_backoff",
        "_budget",
        "_gave_up",
        "_matches",
        "_on",
        "_on_result",
        "_on_retry",
        "_plain",
        "_retry_after",
        "_rng",
        "_scheduled",
        "_timeout",
    )

    def __init__(
        self,
        *,
        on: On,
        on_result: Callable[[Any], bool] | None = None,
        attempts: float = 4,
        backoff: Backoff = _CLASSIC,
        attempt_timeout: float = inf,
        timeout: float = inf,
        budget: Budget | None = None,
        retry_after: Callable[[Any], float | None] | None = None,
        on_retry: Callable[[RetryScheduled], object] | None = None,
        retry_exhausted: bool = False,
        rng: RandomSource | None = None,
        instruments: Sequence[Instrument] = (),
    ) -> None:
        _check_parts(backoff, budget, retry_exhausted, rng)
        _check_functions(on_result=on_result, retry_after=retry_after, on_retry=on_retry)
        hooks = Hooks(instruments)
        self._on = on
        self._matches = matcher(on, exhausted_too=retry_exhausted)
        self._on_result = on_result
        self._attempts = count("attempts", attempts, 1)
        self._backoff = backoff
        self._attempt_timeout = above("attempt_timeout", attempt_timeout, 0)
        self._timeout = above("timeout", timeout, 0)
        self._budget = budget
        self._retry_after = retry_after
        self._on_retry = on_retry
        self._rng = CHANCE if rng is None else rng
        self._scheduled = hooks.of("retry_scheduled")
        self._gave_up = hooks.of("gave_up")
        endless = self._attempt_timeout == self._timeout == inf
        self._plain = endless and on_result is None

    @property
    def attempts(self) -> float:
        """How many attempts in all, the first included."""
        return self._attempts

    @property
    def attempt_timeout(self) -> float:
        """Seconds an attempt may take."""
        return self._attempt_timeout

    @property
    def timeout(self) -> float:
        """Seconds for all attempts and pauses together."""
        return self._timeout

    @property
    def budget(self) -> Budget | None:
        """What is asked before each retry."""
        return self._budget

    @property
    def on_result(self) -> Callable[[Any], bool] | None:
        """Which results are repeated."""
        return self._on_result

    def _sharing(self, budget: Budget) -> Retry:
        """Return a copy that asks `budget`: for a stack."""
        twin = copy(self)
        twin._budget = budget
        return twin

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        return {
            "on": self._on,
            "on_result": self._on_result,
            "attempts": self._attempts,
            "backoff": self._backoff,
            "attempt_timeout": self._attempt_timeout,
            "timeout": self._timeout,
            "budget": self._budget,
            "retry_after": self._retry_after,
        }

    def __repr__(self) -> str:
        limits = {"attempt_timeout": self._attempt_timeout, "timeout": self._timeout}
        finite = "".join(f", {name}={seconds:g}" for name, seconds in limits.items() if seconds < inf)
        return f"Retry(on={self._on!r}, attempts={self._attempts:g}, backoff={self._backoff!r}{finite})"

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)`, repeatedly if need be, and return its result.

        Has the checkpoints of `fn`, and one in each pause. Cancelling it cancels the attempt or the pause.

        Raises:
            trio.TooSlowError: `timeout` ended an attempt, or `attempt_timeout` the last one.
            Exception: What the last attempt raised.
        """
        started_at = current_time()
        if not self._plain:
            return await _call_guarded(Run(self, callee(fn, args), started_at, EXHAUSTIONS.count), fn, args)
        since, attempt, budget = EXHAUSTIONS.count, 1, self._budget
        failure: Exception | None = None
        if budget is not None:
            budget.begin()
        try:
            while True:
                try:
                    result = await fn(*args)
                except Exception as error:
                    delay = self._pause_after(callee(fn, args), error, attempt, started_at, since)
                    if delay is None:
                        raise
                    if budget is not None:
                        failure = error
                else:
                    if budget is not None:
                        settle(budget, attempt, failure)
                    return result
                if delay:
                    await sleep(delay)
                else:
                    await checkpoint()
                since = EXHAUSTIONS.count
                attempt += 1
        finally:
            del failure  # no cycle through the traceback

    def _pause_after(
        self, fn: Callable[..., object], error: Exception, attempt: int, started_at: float, since: int
    ) -> float | None:
        """Decide for `call`, where only the caller's deadline is to be kept. Raises what a `GiveUp` carries."""
        if isinstance(error, TypeError) and is_misfit(error):
            mark_permanent(error)
        deadline = current_effective_deadline()
        delay, _, _, last = self._judge(
            fn, error, attempt, started_at, current_time(), deadline, NO_RESULT, False, None, since
        )
        if last is not error and last is not None:
            try:
                raise_untouched(last)
            finally:
                del last, error  # no cycle through the traceback
        return delay

    def __aiter__(self) -> Attempts:
        """Start a run: `async for attempt in retry: with attempt: ...`. In events it has the name of the caller."""
        name = sys._getframe(1).f_code.co_qualname
        return Attempts(Run(self, name, current_time(), EXHAUSTIONS.count))

    def decide(
        self,
        name: Name,
        error: BaseException | None,
        *,
        attempt: int,
        started_at: float,
        now: float,
        deadline: float,
        result: object = NO_RESULT,
        timed_out: bool = False,
        wish: float | None = None,
        since: int = 0,
    ) -> Decision:
        """Decide what follows a failed attempt. The one place that does; a queue calls it too, and waits by itself.

        Sync. It draws the pause, asks the budget, calls `on_retry` and the instruments, and, if it gives up, writes the
        note and the exhausted mark on the error.

        Args:
            name: What is repeated, for events: a text or the function.
            error: What the attempt raised (may be a `GiveUp`); None if its `result` was refused.
            attempt: The number of the attempt that failed; 1 is the first.
            started_at: When the first attempt started.
            now: The present time.
            deadline: When the next attempt must have started: the smallest of all that apply.
            result: The refused result.
            timed_out: A time-out of ours ended the attempt, and made `error`: always retryable.
            wish: What the body asked for by itself, in seconds.
            since: `EXHAUSTIONS.count` at the start of the attempt: older exhausted marks are stale. With 0 none is.

        Raises:
            Exception: What a predicate, `retry_after`, `on_retry`, a budget or a backoff of the user's raised.
        """
        return Decision(*self._judge(name, error, attempt, started_at, now, deadline, result, timed_out, wish, since))

    def _judge(
        self,
        name: Name,
        error: BaseException | None,
        attempt: int,
        started_at: float,
        now: float,
        deadline: float,
        result: object,
        timed_out: bool,
        wish: float | None,
        since: int,
    ) -> tuple[float | None, str, float | None, BaseException | None]:
        elapsed = now - started_at
        if not (timed_out or error is None or self._matches(error, since)):
            reason = GIVEN_UP if isinstance(error, GiveUp) else NOT_RETRYABLE
            return self._end(name, error, attempt, elapsed, reason, None)
        if self._budget is not None:
            self._budget.failed(error)
        if wish is not None or self._retry_after is not None or isinstance(error, _WISHFUL):
            failure = error if result is NO_RESULT else result
            wish = self._longest(wish, failure, None if timed_out else self._retry_after)
        delay, reason = self._next(error, attempt, now, deadline, wish)
        if delay is None:
            return self._end(name, error, attempt, elapsed, reason, wish)
        if self._scheduled or self._on_retry is not None:
            self._announce(RetryScheduled(name_of(name), attempt, self._attempts, delay, elapsed, error))
        return delay, "", wish, error

    def _next(
        self, error: BaseException | None, attempt: int, now: float, deadline: float, wish: float | None
    ) -> tuple[float | None, str]:
        """Return the pause, or None and why there is none. The budget comes last, so that nothing is spent in vain."""
        if now >= deadline:
            return None, DEADLINE
        if attempt >= self._attempts:
            return None, ATTEMPTS
        delay = self._backoff(attempt, self._rng)
        if not 0 <= delay < inf:
            raise bad_delay(delay)
        if wish is not None and wish > delay:
            delay = wish
        if now + delay >= deadline:
            return None, DEADLINE
        if self._budget is not None and not self._budget.withdraw(error):
            return None, BUDGET
        return delay, ""

    def _longest(self, wish: object, failure: object, ask: Callable[[Any], float | None] | None) -> float | None:
        """Return the longest valid wish: the body's, those of refusals, those that `ask` finds."""
        wishes = [wish]
        for leaf in leaves(failure):
            if isinstance(leaf, RejectedError):
                wishes.append(leaf.retry_after)
            if ask is not None:
                wishes.append(ask(leaf))
        return max((valid for valid in wishes if _is_wish(valid)), default=None)

    def _announce(self, event: RetryScheduled) -> None:
        emit(self._scheduled, event)
        if self._on_retry is not None:
            self._on_retry(event)

    def _end(
        self, name: Name, error: BaseException | None, attempt: int, elapsed: float, reason: str, wish: float | None
    ) -> tuple[None, str, float | None, BaseException | None]:
        if isinstance(error, GiveUp):
            error = error.error
        if error is not None:
            sign(error, attempt, elapsed, reason)
        if self._gave_up:
            emit(self._gave_up, GaveUp(name_of(name), attempt, self._attempts, elapsed, reason, error))
        return None, reason, wish, error


async def _call_guarded(run: Run, fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> T:
    """Do what `call` does with time-outs, results or a budget to look after."""
    async for attempt in Attempts(run):
        with attempt:
            result = await fn(*args)
            if not attempt.refuses(result):
                return result
    raise AssertionError("the last attempt returns or raises")


def _is_wish(wish: object) -> TypeGuard[float]:
    return isinstance(wish, (int, float)) and 0 <= wish < inf


def _check_parts(backoff: object, budget: object, retry_exhausted: object, rng: object) -> None:
    if not isinstance(backoff, Backoff):
        raise TypeError(f"backoff must be a Backoff such as FullJitter(), got {backoff!r}")
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget such as RetryBudget(), got {budget!r}")
    if not isinstance(retry_exhausted, bool):
        raise TypeError(f"retry_exhausted must be True or False, got {retry_exhausted!r}")
    if rng is not None and not (hasattr(rng, "random") and hasattr(rng, "uniform")):
        raise TypeError(f"rng must have random() and uniform(), got {rng!r}")


def _check_functions(**functions: object) -> None:
    for name, function in functions.items():
        if function is not None:
            plain_function(name, function)
