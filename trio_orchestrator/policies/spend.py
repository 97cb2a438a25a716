"""See the bill before it comes, and stop before it is too high: exact money, by calendar periods."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, TypeVarTuple, cast, final

from trio import current_time

from trio_orchestrator.abc import Instrument, Policy
from trio_orchestrator.algorithms.account import Account, check_exported, restored
from trio_orchestrator.algorithms.argument import above, plain_function
from trio_orchestrator.algorithms.ledger import amount, whole_units
from trio_orchestrator.algorithms.period import PERIODS, Calendar, Per, Period
from trio_orchestrator.algorithms.traffic import Traffic
from trio_orchestrator.algorithms.usual import Usual
from trio_orchestrator.block import Hooks, emit
from trio_orchestrator.errors import BudgetExhaustedError, RejectedError
from trio_orchestrator.policies.failure import leaves
from trio_orchestrator.policy_event import SpendStopped, SpendWarned

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_WINDOWS: Final[Mapping[str, float]] = {"hour": 300.0, "day": 3600.0, "month": 86_400.0}
_USUAL_OVER: Final = 7.0  # periods
_USUAL_AFTER: Final = 3.0


class Shuttable(Protocol):
    """What a guard can shut: a `Gate`, or something like it."""

    def shut(self, seconds: float) -> None:
        """Let nothing through for so many seconds from now. Sync."""
        ...


@final
@dataclass(frozen=True, slots=True)
class SpendStatistics:
    """What a guard has counted in the present period."""

    spent: Decimal
    limit: Decimal
    projected: Decimal
    """What will be spent by the end of the period if calls go on at the present rate. May pass the limit."""
    usual: float
    """What a period usually costs; 0.0 until three whole ones are known."""
    calls: int
    """How many calls were let through, without those refunded."""
    refused: int
    stopped: bool
    """Whether a call was refused in this period."""
    period_start: float
    """Seconds since 1970, UTC."""
    period_end: float


@final
class SpendGuard(Policy):
    """Let calls cost `limit` at most in each hour, day or month (UTC), and warn before that.

    Each attempt costs `price`, so place it where attempts pass, innermost: inside the `Retry`, next to the function.
    Prices are those of your contract: `SpendGuard(Decimal("0.40") / 1_000_000, Decimal(25), per="month")`. Money is a
    `Decimal` and exact: what is spent is price x calls, whatever their number. The guard never waits by itself.

    **The limit.** A call that would pass it is refused *before* it is made: `BudgetExhaustedError`, whose `retry_after`
    is the time until the period ends. Then `gate=`, if given, is shut until the period ends: a queue whose
    `cooldown.gate()` it is keeps its jobs, and starts them in the next period. (A queue with `protect=guard` does so
    without being given a gate.)

    **Warnings**, as `SpendWarned`: once a period for each of `warn_at`, when that part of the limit is spent; and once
    a period when the projected cost is more than `times_usual` times the usual one. The projection is what was spent,
    and the rate of the last 5 minutes, hour or day (for an hour, a day, a month) until the end of the period. Usual is
    a slow average over past periods (time constant: 7), known after three whole ones. It is judged at each call.

    **What is charged.** A call is charged when it starts, and stays charged however it ends, cancelled as well: the
    request may have been sent. Only a `RejectedError` from inside is refunded, to the period that paid: the call never
    ran. `charge(units)` before, and `guard.charge(units)` within, count what is known only there (tokens, bytes).

    **Wall time** only tells which period it is. A new one begins when `wall()` reaches it. A clock that steps back
    neither reopens an old period nor loses what was spent: the later period goes on, until the wall clock is in it
    again, or until it has lasted its full length by Trio's clock (so that a wrong date does not lock the guard for a
    year). So each period that the clock reaches gives one limit, however the clock jumps about.

    Args:
        price: What one unit costs, > 0. A float is refused: 0.4 is not the 0.40 of a bill.
        limit: What may be spent in a period, > 0.
        per: `"hour"`, `"day"` or `"month"`: calendar ones, in UTC.
        warn_at: Parts of the limit, each above 0 and at most 1.
        times_usual: A multiple, > 1; `math.inf` for no such warning.
        wall: A plain function that returns the seconds since 1970.
        gate: What to shut when the limit is reached.
        name: Shown in events, errors and its `repr`.
        instruments: Listeners for `spend_warned` and `spend_stopped`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is out of range or NaN, an amount has more than 60 digits on a side of the point, `per` is
            none of the three, or the limit does not pay for one unit.
    """

    __slots__ = (
        "_account",
        "_calendar",
        "_fractions",
        "_full",
        "_gate",
        "_limit",
        "_metered_at",
        "_name",
        "_on_stopped",
        "_on_warned",
        "_per",
        "_price",
        "_times_usual",
        "_traffic",
        "_usual",
        "_wall",
    )

    def __init__(
        self,
        price: Decimal,
        limit: Decimal,
        *,
        per: Per = "day",
        warn_at: Sequence[float] = (0.5, 0.8),
        times_usual: float = 2.0,
        wall: Callable[[], float] = time.time,
        gate: Shuttable | None = None,
        name: str = "spend",
        instruments: Sequence[Instrument] = (),
    ) -> None:
        if per not in PERIODS:
            raise ValueError(f"per must be 'hour', 'day' or 'month', got {per!r}")
        if gate is not None and not callable(getattr(gate, "shut", None)):
            raise TypeError(f"gate must have shut(seconds), got {gate!r}")
        plain_function("wall", wall)
        hooks = Hooks(instruments)
        self._price = amount("price", price)
        self._limit = amount("limit", limit)
        self._per: Per = per
        self._fractions = tuple(_fraction(part) for part in warn_at)
        self._times_usual = above("times_usual", times_usual, 1)
        self._wall = wall
        self._gate = gate
        self._name = name
        self._on_warned = hooks.of("spend_warned")
        self._on_stopped = hooks.of("spend_stopped")
        self._usual = Usual(_USUAL_OVER)
        self._calendar = Calendar(per)
        self._traffic: Traffic | None = None
        self._metered_at = -inf  # when the rate was last looked at
        self._account = self._new_account()
        self._full = self._account.ledger.most
        if not self._full:
            raise ValueError(f"limit must be >= price, got {limit!r}")

    def _new_account(self) -> Account:
        return Account(self._price, self._limit, self._fractions)

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        told: dict[str, object] = {"price": self._price, "limit": self._limit, "per": self._per}
        return {
            **told,
            "warn_at": self._fractions,
            "times_usual": self._times_usual,
            "gate": self._gate,
            "name": self._name,
        }

    def __repr__(self) -> str:
        return f"<SpendGuard {self._name!r} {self._account.ledger.spent} of {self._limit} a {self._per}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def limit(self) -> Decimal:
        """What may be spent in a period."""
        return self._limit

    # -------------------------------------------------------------------------------------------- charging

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Charge one unit, call `fn(*args)` and return its result.

        Has the checkpoints of `fn` and adds none. Cancelling it cancels `fn`; the call stays charged.

        Raises:
            BudgetExhaustedError: It would pass the limit. `fn` was not called.
        """
        with Charge(self, 1):
            return await fn(*args)

    def guard(self, units: int = 1) -> Charge:
        """Return a block that costs so many units: `with spend.guard():`. Neither half blocks.

        Entering it raises `BudgetExhaustedError` if it would pass the limit.
        """
        return Charge(self, self._payable(units))

    def charge(self, units: int = 1) -> None:
        """Charge so many units, for what is about to be bought. Sync.

        Raises:
            BudgetExhaustedError: They would pass the limit. Nothing was charged.
            ValueError: `units` is no whole number >= 0, or more than a whole limit pays for.
        """
        self._admit(self._payable(units))

    def _payable(self, units: object) -> int:
        number = whole_units(units)
        if number > self._full:
            raise ValueError(f"units must be <= {self._full}, which is all that the limit pays for, got {units!r}")
        return number

    def _admit(self, units: int) -> Account:
        """Charge a call before it is made; return the account to which it was charged."""
        now, wall = self._look()
        account = self._account
        if not account.ledger.fits(units):
            raise self._refuse(now, wall)
        account.calls += 1
        self._count(units, now, wall)
        return account

    def _overrun(self, units: int) -> None:
        """Charge what was bought already, whether it fits or not."""
        now, wall = self._look()
        self._count(units, now, wall)

    def _refuse(self, now: float, wall: float) -> BudgetExhaustedError:
        account, seconds = self._account, self._calendar.left(now, wall)
        spent = account.ledger.spent
        first, account.stopped = not account.stopped, True
        account.refused += 1
        if self._gate is not None:
            self._gate.shut(seconds)
        if first and self._on_stopped:
            emit(self._on_stopped, SpendStopped(self._name, spent, self._limit, seconds))
        message = f"{self._name}: {spent} of {self._limit} a {self._per} is spent, free in {seconds:.3g} s"
        return BudgetExhaustedError(message, retry_after=seconds)

    def _count(self, units: int, now: float, wall: float) -> None:
        account = self._account
        passed = account.charge(units)
        self._metered(now).called(now, units)
        multiple = self._multiple(now, wall)
        account.unusual = account.unusual or multiple > 0
        if self._on_warned and (passed or multiple):
            self._warn(passed, multiple, now, wall)

    def _multiple(self, now: float, wall: float) -> float:
        """Return how many times the usual cost is projected if that is to be told; else 0."""
        if self._account.unusual or self._times_usual == inf or not (usual := self._usual_cost):
            return 0.0
        multiple = float(self._projected(now, wall)) / usual
        return multiple if multiple > self._times_usual else 0.0

    def _warn(self, passed: list[float], multiple: float, now: float, wall: float) -> None:
        spent, projected = self._account.ledger.spent, self._projected(now, wall)
        warnings = [(fraction, "fraction") for fraction in passed]
        if multiple:
            warnings.append((multiple, "times_usual"))
        for fraction, reason in warnings:
            emit(self._on_warned, SpendWarned(self._name, fraction, spent, projected, self._limit, reason))

    # ------------------------------------------------------------------------------------------- projecting

    @property
    def _usual_cost(self) -> float:
        return self._usual.value if self._usual.learned >= _USUAL_AFTER else 0.0

    def _metered(self, now: float) -> Traffic:
        if self._traffic is None or now < self._metered_at:  # in another run, whose clock is another one
            window = _WINDOWS[self._per]
            self._traffic = Traffic(window, window, now)
        self._metered_at = now
        return self._traffic

    def _projected(self, now: float, wall: float) -> Decimal:
        """Return what was spent, and what the present rate will add until the end of the period."""
        traffic = self._metered(now)
        rate = traffic.counts(now).calls / traffic.covered(now)
        return self._account.ledger.projected(round(rate * self._calendar.left(now, wall)))

    # ---------------------------------------------------------------------------------------------- periods

    def _look(self) -> tuple[float, float]:
        """Find out which period it is, and begin a new one if the old one is over. Return both clocks."""
        now, wall = current_time(), self._wall()
        whole = self._calendar.whole
        old = self._calendar.turn(now, wall)
        if old is not None:
            self._close(old, whole)
        return now, wall

    def _close(self, old: Period, whole: bool) -> None:
        """Learn what a period has cost, and what was not called in cost nothing; begin the next account."""
        if whole:
            self._usual.learn(float(self._account.ledger.spent), 1.0)
        skipped = round((self._period.start - old.end) / old.length)
        if self._usual.learned and skipped > 0:
            self._usual.learn(0.0, skipped)
        self._account = self._new_account()

    @property
    def _period(self) -> Period:
        return cast("Period", self._calendar.period)

    # ---------------------------------------------------------------------------------------------- reading

    @property
    def is_idle(self) -> bool:
        """Whether nothing was spent or refused in this period, so that it may be forgotten, with what is usual."""
        self._look()
        return not (self._account.used or self._account.ledger.carried)

    def statistics(self) -> SpendStatistics:
        """Return what was counted in the present period. Sync."""
        now, wall = self._look()
        return SpendStatistics(
            spent=self._account.ledger.spent,
            limit=self._limit,
            projected=self._projected(now, wall),
            usual=self._usual_cost,
            calls=self._account.calls,
            refused=self._account.refused,
            stopped=self._account.stopped,
            period_start=float(self._period.start),
            period_end=float(self._period.end),
        )

    def export(self) -> dict[str, Any]:
        """Return what must survive a restart, as plain data that JSON can carry. Sync."""
        self._look()
        return {
            "per": self._per,
            "period_start": self._period.start,
            "whole": self._calendar.whole,
            "usual": self._usual.value,
            "usual_periods": self._usual.learned,
            **self._account.export(),
        }

    def restore(self, exported: Mapping[str, Any]) -> None:
        """Take up what another guard has exported: before the first call, in the same or a later run. Sync.

        Its period goes on if it lasts still, or if the wall clock has stepped back since; else it is over. What was
        spent counts exactly, also if the price has changed. Which wall time it was is all that is compared: the rate is
        metered anew.

        Raises:
            RuntimeError: Something was charged here already.
            ValueError: `exported` is of other periods (`per`), or not what `export` returns.
        """
        if self._account.used:
            raise RuntimeError("restore must come before the first call")
        check_exported(exported, self._per)
        self._account = restored(self._price, self._limit, self._fractions, exported)
        self._calendar = Calendar(self._per, exported["period_start"], whole=exported["whole"])
        self._usual = Usual(_USUAL_OVER, exported["usual"], exported["usual_periods"])
        self._look()


@final
class Charge:
    """A call that costs money, as a block; entered again, another one. Neither half blocks."""

    __slots__ = ("_account", "_guard", "_units")

    def __init__(self, guard: SpendGuard, units: int) -> None:
        self._guard = guard
        self._units = units

    def charge(self, units: int) -> None:
        """Charge units more, for what the call has turned out to cost. Sync.

        They are spent, so they are counted even if they pass the limit; the calls that follow are then refused.
        """
        self._guard._overrun(whole_units(units))

    def __enter__(self) -> Self:
        self._account = self._guard._admit(self._units)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and all(isinstance(leaf, RejectedError) for leaf in leaves(error)):
            self._account.ledger.refund(self._units)
            self._account.calls -= 1


def _fraction(value: object) -> float:
    part = above("warn_at", value, 0)
    if part > 1:
        raise ValueError(f"warn_at must be <= 1, got {value!r}")
    return part
