"""What may be spent on retries, so that a service that is down is not asked four times as often as one that is up.

Three budgets for `Retry(budget=...)`, for a queue's `retry` and for hedges, which share them:

* `RetryBudget`: a share of the calls, and a few a second (Finagle). The one to begin with.
* `TokenQuota`: a purse that failures empty and successes fill (the AWS SDKs).
* `GrpcThrottle`: as long as most calls succeed (gRPC).

A budget is worth as much as its scope: one for each service that may fail by itself, or an outage of one takes the
retries of all (`PerKey` makes one per key). All count in whole numbers, so that what they grant is exact, and after any
number of calls `level == capacity - taken + given`. They are plain sync objects of one process; they never wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Final, Self, final

import trio

from trio_orchestrator.abc import Budget
from trio_orchestrator.algorithms.argument import above, at_least
from trio_orchestrator.algorithms.balance import Balance
from trio_orchestrator.algorithms.bucket import UNIT, Bucket, parts
from trio_orchestrator.policies.failure import Matcher, On, is_timeout, matcher

_FINEST: Final = 1_000_000


@final
@dataclass(frozen=True, slots=True)
class RetryBudgetStatistics:
    """A `RetryBudget` at one instant."""

    retries: int
    """How many retries would be granted now, without another call; >= 0."""
    calls: int
    """How many calls began, since the budget was made."""
    granted: int
    """How many retries were granted."""
    refused: int
    """How many were not."""


@final
class RetryBudget(Budget):
    """Grant retries for a share of the calls: one more every `1 / ratio` calls, and some a second in any case.

    Finagle's `RetryBudget`, with its defaults: 20 % of the calls of the last 10 s, and 10 retries a second. A call puts
    its share in when it *begins*, whatever becomes of it, and a retry takes a whole one out. Below that is a reserve of
    `minimum_per_second * window` retries, so that a client with few calls may retry as well. Both what was put in and
    what was taken out are forgotten after `window` seconds, in ten steps: a busy hour is no credit for an outage, and
    after an idle window the budget is as a new one.

    In any nine tenths of a window the retries are at most the reserve and `ratio` of the calls of the window that ends
    with the last of them. The arithmetic is exact: with a ratio of 0.2 every fifth call makes one retry, and 0.6 is
    three retries for five calls. A retry belongs to a call that has been counted already: it puts nothing in.

    Each layer that retries by itself multiplies: three layers of 4 attempts make 64 calls, three layers with a budget
    of 10 % at most 1.331 for each.

    Args:
        ratio: Retries per call, kept to a millionth; 0 leaves the reserve, 2 allows two retries for each call.
        minimum_per_second: Retries a second that need no calls; 0 for none.
        window: Seconds after which calls and retries are forgotten.

    Raises:
        TypeError: An argument is not a number.
        ValueError: A number is negative, infinite or NaN, or `window` is 0.
    """

    __slots__ = ("_calls", "_granted", "_minimum", "_ratio", "_refused", "_reserve", "_share", "_sums", "_window")

    def __init__(self, ratio: float = 0.2, minimum_per_second: float = 10, window: float = 10) -> None:
        self._ratio = at_least("ratio", ratio, 0, finite=True)
        self._minimum = at_least("minimum_per_second", minimum_per_second, 0, finite=True)
        self._window = above("window", window, 0, finite=True)
        self._share = _fraction(self._ratio)
        self._reserve = floor(_fraction(self._minimum) * _fraction(self._window) * self._share.denominator)
        self._sums = Balance(self._window)
        self._calls = self._granted = self._refused = 0

    def begin(self) -> None:
        """Put in the share of a call."""
        self._calls += 1
        if self._share:
            self._sums.book(self._sums.entry(trio.current_time()), credit=self._share.numerator)

    def withdraw(self, error: BaseException | None) -> bool:
        """Take out a whole retry, if there is one. What failed makes no difference."""
        entry = self._sums.entry(trio.current_time())
        price = self._share.denominator
        if self._balance < price:
            self._refused += 1
            return False
        self._sums.book(entry, debit=price)
        self._granted += 1
        return True

    @property
    def _balance(self) -> int:
        return self._reserve + self._sums.credit - self._sums.debit

    @property
    def is_idle(self) -> bool:
        """Whether it is as a new one: nothing happened during the last window."""
        self._sums.expire(trio.current_time())
        return not self._sums.debit and not self._sums.credit

    def statistics(self) -> RetryBudgetStatistics:
        """Return what it would grant now, and what it has granted."""
        self._sums.expire(trio.current_time())
        retries = max(0, self._balance) // self._share.denominator
        return RetryBudgetStatistics(retries, self._calls, self._granted, self._refused)

    def __repr__(self) -> str:
        settings = f"{self._ratio:g}, minimum_per_second={self._minimum:g}, window={self._window:g}"
        state = f", retries={self.statistics().retries}" if trio.lowlevel.in_trio_run() else ""
        return f"RetryBudget({settings}{state})"


@final
@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """A budget of tokens at one instant; `level == capacity - taken + given`."""

    level: float
    capacity: float
    taken: float
    """How many tokens were taken out."""
    given: float
    """How many were put in, as far as there was room."""
    granted: int
    """How many retries were granted."""
    refused: int
    """How many were not."""


class _TokenBudget(Budget):
    __slots__ = ("_bucket", "_granted", "_refused")

    def __init__(self, capacity: int) -> None:
        self._bucket = Bucket(capacity)
        self._granted = self._refused = 0

    def _count(self, granted: bool) -> bool:
        if granted:
            self._granted += 1
        else:
            self._refused += 1
        return granted

    @property
    def is_idle(self) -> bool:
        """Whether it is as a new one: full."""
        return self._bucket.full

    def statistics(self) -> TokenStatistics:
        """Return the tokens there are, and what came of them."""
        bucket = self._bucket
        return TokenStatistics(
            level=bucket.level / UNIT,
            capacity=bucket.capacity / UNIT,
            taken=bucket.taken / UNIT,
            given=bucket.given / UNIT,
            granted=self._granted,
            refused=self._refused,
        )


@final
class TokenQuota(_TokenBudget):
    """Grant retries from a purse that they empty and that successes fill: the retry quota of the AWS SDKs.

    A retry takes the cost of the error it follows: `throttling_cost` if `throttled` covers it, else `timeout_cost` if
    `timeouts` does or a time-out of ours made it, else `cost`; of a group all leaves must match. It is refused if the
    purse holds less. A call that succeeds after a retry puts the cost of its *last* retry back, one that succeeds at
    once puts in `refund`, one that fails nothing, and the purse never holds more than `capacity`. So while all goes
    well retries are free, and in an outage `capacity / cost` of them are left, for all calls together and until
    something succeeds.

    The defaults are those of the mode "standard" (botocore, aws-sdk-*): 500 tokens, 5 a retry, 10 after a time-out.
    `TokenQuota.aws_2026()` has those of the mode that follows it. A token is kept in thousandths.

    Args:
        capacity: Tokens at first, and at most.
        cost: Tokens for a retry.
        timeout_cost: Tokens for a retry after a time-out.
        throttling_cost: Tokens for a retry after the service said that it is asked too often; None: `cost`.
        refund: Tokens for a call that succeeds at its first attempt.
        throttled: Which errors say that the service is asked too often.
        timeouts: Which errors are time-outs, beside ours.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is negative, infinite or NaN, a cost is 0, or a number is not 0 and below a thousandth.
    """

    __slots__ = ("_costs", "_refund", "_throttled", "_timeouts")

    def __init__(
        self,
        capacity: float = 500,
        cost: float = 5,
        *,
        timeout_cost: float = 10,
        throttling_cost: float | None = None,
        refund: float = 1,
        throttled: On = (),
        timeouts: On = (trio.TooSlowError, TimeoutError),
    ) -> None:
        super().__init__(parts("capacity", capacity))
        self._costs = (
            _price("cost", cost),
            _price("timeout_cost", timeout_cost),
            _price("throttling_cost", cost if throttling_cost is None else throttling_cost),
        )
        self._refund = parts("refund", refund)
        self._throttled = _matcher("throttled", throttled)
        self._timeouts = _matcher("timeouts", timeouts)

    @classmethod
    def standard(cls, *, throttled: On = ()) -> Self:
        """Return the quota of the mode "standard": 500 tokens, 5 a retry, 10 after a time-out."""
        return cls(throttled=throttled)

    @classmethod
    def aws_2026(cls, *, throttled: On = ()) -> Self:
        """Return the quota of the mode of 2026 (`AWS_NEW_RETRIES_2026`): 14 a retry, 5 after throttling."""
        return cls(500, 14, timeout_cost=14, throttling_cost=5, throttled=throttled)

    def withdraw(self, error: BaseException | None) -> bool:
        """Take out the cost of a retry after `error`, if there is that much."""
        return self._count(self._bucket.take(self._cost_of(error)))

    def refund(self, error: BaseException | None) -> None:
        """Put back what the last retry of a call took that has succeeded."""
        self._bucket.give(self._cost_of(error))

    def deposit(self, attempts: int) -> None:
        """Put in `refund` tokens for a call that succeeded at its first attempt."""
        if attempts == 1:
            self._bucket.give(self._refund)

    def _cost_of(self, error: BaseException | None) -> int:
        usual, timeout, throttling = self._costs
        if error is None:
            return usual
        if self._throttled(error):
            return throttling
        return timeout if is_timeout(error) or self._timeouts(error) else usual

    def __repr__(self) -> str:
        cost, timeout, throttling = (f"{cost / UNIT:g}" for cost in self._costs)
        costs = f"cost={cost}, timeout_cost={timeout}, throttling_cost={throttling}"
        return f"TokenQuota({self._bucket.capacity / UNIT:g}, {costs}, level={self._bucket.level / UNIT:g})"


@final
class GrpcThrottle(_TokenBudget):
    """Grant retries while most calls succeed: the retry throttling of gRPC (proposal A6).

    An attempt that fails takes one token out, a call that succeeds puts `token_ratio` in, between 0 and `max_tokens`.
    Retries are granted while *more* than half of `max_tokens` is left, and cost nothing by themselves. So they stop
    when more than `token_ratio / (1 + token_ratio)` of all attempts fail for long: 9.09 % with 0.1. From then on the
    calls themselves, each with its one attempt, tell when it is over.

    The defaults are those of gRPC's examples. Kept in whole thousandths, as gRPC does.

    Args:
        max_tokens: Tokens at first, and at most.
        token_ratio: Tokens for a success.

    Raises:
        TypeError: An argument is not a number.
        ValueError: `max_tokens` or `token_ratio` is not above 0, infinite or NaN, or below a thousandth.
    """

    __slots__ = ("_ratio",)

    def __init__(self, max_tokens: float = 10, token_ratio: float = 0.1) -> None:
        super().__init__(_price("max_tokens", max_tokens))
        self._ratio = _price("token_ratio", token_ratio)

    def failed(self, error: BaseException | None) -> None:
        """Take out a token, or what there is."""
        self._bucket.drain(UNIT)

    def withdraw(self, error: BaseException | None) -> bool:
        """Tell whether more than half of the tokens are left."""
        return self._count(2 * self._bucket.level > self._bucket.capacity)

    def deposit(self, attempts: int) -> None:
        """Put in the share of a success."""
        self._bucket.give(self._ratio)

    def __repr__(self) -> str:
        bucket = self._bucket
        return f"GrpcThrottle({bucket.capacity / UNIT:g}, {self._ratio / UNIT:g}, level={bucket.level / UNIT:g})"


def _fraction(value: float) -> Fraction:
    """Return what was meant: a third for 1/3, three fifths for 0.6; to a millionth."""
    return Fraction(value).limit_denominator(_FINEST)


def _price(name: str, value: object) -> int:
    above(name, value, 0, finite=True)
    return parts(name, value)


def _matcher(name: str, on: On) -> Matcher:
    try:
        return matcher(on, exhausted_too=True)
    except TypeError as error:
        raise TypeError(str(error).replace("on must", f"{name} must", 1)) from None
