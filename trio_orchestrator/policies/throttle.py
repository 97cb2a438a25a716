"""Refuse calls here, in the client, for as long as the other side accepts few of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple, final

from trio import current_time
from trio.lowlevel import in_trio_run

from trio_orchestrator.abc import Policy, RandomSource
from trio_orchestrator.algorithms.argument import above, at_least, count, random_source
from trio_orchestrator.algorithms.balance import Balance, Entry
from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.algorithms.share import refused_share
from trio_orchestrator.errors import BudgetExhaustedError
from trio_orchestrator.policies.failure import On
from trio_orchestrator.policies.guard import Guard
from trio_orchestrator.policies.verdict import FAILURE, NEUTRAL, SUCCESS, Judge, Verdict

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
@dataclass(frozen=True, slots=True)
class ThrottleStatistics:
    """What a throttle knows at one instant, and has seen."""

    requests: int
    """Calls of the window, the refused ones included."""
    accepts: int
    """How many of them succeeded."""
    share: float
    """The share of calls that would be refused now, in [0, 1)."""
    admitted: int
    """Calls let in since it was made: `successes + failures + neutral + in_flight`."""
    refused: int
    successes: int
    failures: int
    neutral: int
    """Calls that were cancelled, or refused by a policy further in."""
    in_flight: int


@final
class SreThrottle(Policy):
    """Refuse a share of the calls, by chance, when fewer than one in `k` succeeds: the SRE book's adaptive throttling.

    With the calls and the successes of the last `window` seconds, a call is refused with the probability
    `max(0, (requests - k * accepts) / (requests + 1))`. A service that accepts 100 calls a second gets about
    `k * 100` of them, however many are made, and a service that is down gets one now and then, which finds out when it
    is up again. There is no state to open or to close, no timer, and nothing to agree upon with other clients.

    * `requests` counts a call when it *begins*, so it reacts while calls hang; refused calls count too.
    * `accepts` counts a call that ended in success, in that part of the window in which it began; one that began before
      the window says nothing.
    * An exception that `on` does not cover means that the service answered. A time-out of ours is a failure.
    * A call that somebody cancels, that a policy further in refuses, or that ends with an exception covered by
      `neutral` is taken out of `requests` again: it is as if it had not been made.

    The window expires when it is read, in ten steps: after an idle window it is as a new one. An overload at `k=2` is
    forgotten one window after its end. But refused calls count as requests: after an *outage* of more than a window
    nearly all are refused, one in a window finds out that it is over, and the share falls by a factor of five a window;
    at 1000 calls a second that takes six or seven windows, with `most=0.9` less than two.

    A refusal is a `BudgetExhaustedError` whose `retry_after` is `inf`: chance may let the next call in. Never waits:
    `with throttle.guard():` is sync, and `call` adds no checkpoints.

    Args:
        k: Requests per success that are let through; at least 1. 1.1 sends fewer in vain, and takes ten windows and
            more to recover.
        window: Seconds of history.
        minimum: With fewer calls than these in the window none is refused: when a client starts, its first calls are
            under way, and none has succeeded yet. A whole number >= 0. The default is that of go-kratos.
        most: The highest share of calls that is refused, in (0, 1]. 0.9 is failsafe-go's.
        on: Which exceptions are failures: types, a tuple of them, or a predicate. Default: all.
        neutral: Which exceptions say nothing. Comes before `on`.
        classify: Says of a *result* whether it is a failure.
        name: Shown in errors and `repr`.
        rng: Decides who is refused. Default: the library's.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: `k` is below 1, `window` not above 0, `minimum` is negative, `most` not in (0, 1], or one of them is
            NaN or infinite.

    The formula and the defaults are those of "Site Reliability Engineering" (2016), chapter 21, Handling Overload.
    """

    __slots__ = (
        "_admitted",
        "_failures",
        "_in_flight",
        "_judge",
        "_k",
        "_minimum",
        "_most",
        "_neutral",
        "_refused",
        "_rng",
        "_successes",
        "_sums",
        "_window",
        "name",
    )

    def __init__(
        self,
        k: float = 2,
        window: float = 120,
        *,
        minimum: int = 100,
        most: float = 1.0,
        on: On = Exception,
        neutral: On = (),
        classify: Callable[[Any], bool] | None = None,
        name: str = "throttle",
        rng: RandomSource | None = None,
    ) -> None:
        random_source("rng", rng)
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name must be a str, got {name!r}")
        self._k = at_least("k", k, 1, finite=True)
        self._window = above("window", window, 0, finite=True)
        self._minimum = count("minimum", minimum, 0)
        if above("most", most, 0) > 1:
            raise ValueError(f"most must be <= 1, got {most!r}")
        self._most = float(most)
        self._judge = Judge(on, neutral, classify)
        self._rng = CHANCE if rng is None else rng
        self._sums = Balance(self._window)
        self._admitted = self._refused = self._successes = self._failures = self._neutral = self._in_flight = 0
        self.name: str = name

    def __repr__(self) -> str:
        state = f", refuses {self.statistics().share:.0%}" if in_trio_run() else ""
        return f"<SreThrottle {self.name!r}, k={self._k:g}, window={self._window:g}{state}>"

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        told = {"k": self._k, "window": self._window, "minimum": self._minimum, "most": self._most}
        return {**told, **self._judge.parameters(), "name": self.name}

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)`, unless it is refused, and return its result.

        Has the checkpoints of `fn` and adds none. Cancelling it cancels `fn`, and is neutral.

        Raises:
            BudgetExhaustedError: The call was refused; `fn` was not called.
        """
        entry = self._admit()
        try:
            result = await fn(*args)
        except BaseException as error:
            self._raised(entry, error)
            raise
        self._returned(entry, result)
        return result

    def guard(self) -> ThrottleGuard:
        """Return a guard around one call: `with throttle.guard():`, once. Sync; refuses on entry.

        The end of the block is the end of the call. A result that is a failure is told by `guard.fail()`, or judged by
        `guard.judge(result)`.
        """
        return ThrottleGuard(self)

    @property
    def is_idle(self) -> bool:
        """Whether it is as a new one: no call during the last window, and none in flight."""
        self._sums.expire(current_time())
        return not self._in_flight and not self._sums.debit

    def statistics(self) -> ThrottleStatistics:
        """Return what it knows now, and has seen."""
        self._sums.expire(current_time())
        return ThrottleStatistics(
            requests=self._sums.debit,
            accepts=self._sums.credit,
            share=self._share(),
            admitted=self._admitted,
            refused=self._refused,
            successes=self._successes,
            failures=self._failures,
            neutral=self._neutral,
            in_flight=self._in_flight,
        )

    def _share(self) -> float:
        sums = self._sums
        if sums.debit < self._minimum:
            return 0.0
        return refused_share(sums.debit, sums.credit, self._k, self._most)

    def _admit(self) -> Entry:
        sums = self._sums
        entry = sums.entry(current_time())
        share = self._share()
        refuse = share > 0 and self._rng.random() < share
        sums.book(entry, debit=1)
        if refuse:
            self._refused += 1
            raise BudgetExhaustedError(f"{self.name} refuses {share:.0%} of the calls: too few of them succeed")
        self._admitted += 1
        self._in_flight += 1
        return entry

    def _returned(self, entry: Entry, result: object) -> None:
        try:
            verdict = self._judge.of_result(result)
        except BaseException:
            self._settle(entry, NEUTRAL)
            raise
        self._settle(entry, verdict)

    def _raised(self, entry: Entry, error: BaseException) -> None:
        """Judge what was raised; the verdict may have to wait for a time-out of ours around the call."""
        try:
            self._judge.report(error, partial(self._settle, entry))
        except BaseException:  # a predicate of the user's
            self._settle(entry, NEUTRAL)
            raise

    def _settle(self, entry: Entry, verdict: Verdict) -> None:
        self._in_flight -= 1
        if verdict is SUCCESS:
            self._successes += 1
            self._sums.book(entry, credit=1)
        elif verdict is FAILURE:
            self._failures += 1
        else:
            self._neutral += 1
            self._sums.book(entry, debit=-1)


@final
class ThrottleGuard(Guard):
    """One call through a throttle: `with throttle.guard() as guard:`, once. Neither half blocks."""

    __slots__ = ("_entry", "_throttle", "_used")

    def __init__(self, throttle: SreThrottle) -> None:
        super().__init__(throttle._judge)
        self._throttle = throttle
        self._entry: Entry | None = None
        self._used = False

    def __enter__(self) -> ThrottleGuard:
        """Let the call in.

        Raises:
            BudgetExhaustedError: The call was refused.
            RuntimeError: The guard was entered before.
        """
        if self._used:
            raise RuntimeError("this guard was entered before: take another by throttle.guard()")
        self._entry = self._throttle._admit()
        self._used = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        entry, self._entry = self._entry, None
        assert entry is not None
        if self._verdict is not None:
            self._throttle._settle(entry, self._verdict)
        elif error is None:
            self._throttle._settle(entry, SUCCESS)
        else:
            self._throttle._raised(entry, error)
