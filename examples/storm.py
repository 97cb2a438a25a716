"""The bill of a retry storm: what a loop costs over a weekend, and what an alarm and a spend guard let through of it.

    python examples/storm.py

Two parts, both in virtual time and with the real objects:

- *Retries multiply.* A retry around a retry around a call: one user action, and how many calls? An outer `Retry` does
  not repeat what an inner one has given up on, unless it is told to.
- *A loop over a weekend.* A bug calls a paid service a million times an hour, from Friday 18:00 to Monday 9:00. Nobody
  looks. The bill is exact; beside it is what comes out of the same loop under a `StormAlarm`, whose `on_storm` stops
  it, and under a `SpendGuard` of one dollar a day, which refuses until midnight.

The prices are list prices of common kinds of services, in dollars a million requests. Yours are on your bill.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal

import trio

from trio_orchestrator import Constant, Retry
from trio_orchestrator.abc import Instrument
from trio_orchestrator.errors import BudgetExhaustedError
from trio_orchestrator.policies.meter import CallMeter
from trio_orchestrator.policies.spend import SpendGuard
from trio_orchestrator.policies.storm import StormAlarm
from trio_orchestrator.policy_event import SpendStopped, StormStarted
from trio_orchestrator.testing import run_virtual

PRICES = {
    "a message queue": Decimal("0.40"),
    "an API gateway": Decimal("3.50"),
    "a key-value store": Decimal("1.25"),
}
MILLION = 1_000_000

FRIDAY = datetime(2026, 1, 9, 18, tzinfo=UTC)
MONDAY = datetime(2026, 1, 12, 9, tzinfo=UTC)
WEEKEND = (MONDAY - FRIDAY).total_seconds()
PAUSE = 3600 / MILLION  # seconds between two calls of the loop
LIMIT = Decimal("1.00")  # dollars a day

BATCH = 5000  # where money is counted, one call of the simulation stands for so many of the loop, and costs as much


async def down() -> None:
    raise ConnectionError("the service is down")


async def paid() -> None:
    await trio.lowlevel.checkpoint()


# ------------------------------------------------------------------------------------------- retries multiply


async def calls_of_one_action(outer: int, inner: int, exhausted: bool) -> int:
    """Return how many calls a retry around a retry makes of one."""
    meter = CallMeter(window=86_400)
    pause = Constant(1)
    outside = Retry(on=ConnectionError, attempts=outer, backoff=pause, retry_exhausted=exhausted)
    inside = Retry(on=ConnectionError, attempts=inner, backoff=pause)
    with suppress(ConnectionError):
        await outside.call(inside.call, meter.call, down)
    return meter.statistics("down").calls


def show_layers() -> None:
    print("One user action, while the service is down:")
    print(f"{'layers':<12}{'calls, each layer repeats all':>32}{'calls, exhausted is exhausted':>32}")
    for outer, inner in ((10, 10), (100, 10)):
        all_of_them = run_virtual(calls_of_one_action, outer, inner, True)
        ours = run_virtual(calls_of_one_action, outer, inner, False)
        print(f"{f'{outer} x {inner}':<12}{all_of_them:>32,}{ours:>32,}")


# ------------------------------------------------------------------------------------------ a loop, a weekend


def wall() -> float:
    """Return the wall time of the simulation: it starts on Friday."""
    return FRIDAY.timestamp() + trio.current_time()


async def hammer(call: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]], pause: float) -> int:
    """Be the bug: call until Monday. Return how many calls were made."""
    made = 0
    while trio.current_time() < WEEKEND:
        try:
            await call(paid)
        except BudgetExhaustedError as refused:
            await trio.sleep_until(min(WEEKEND, trio.current_time() + refused.retry_after))
            continue
        made += 1
        await trio.sleep(pause)
    return made


async def unguarded_calls() -> int:
    async def straight(fn: Callable[[], Awaitable[None]]) -> None:
        await fn()

    return BATCH * await hammer(straight, BATCH * PAUSE)


async def calls_under_an_alarm() -> tuple[int, float]:
    """Return how many calls the loop gets through, at its true rate, and after how long it was stopped."""
    with trio.CancelScope() as scope:

        def stop(event: StormStarted) -> None:
            scope.cancel()

        alarm = StormAlarm(calls=1000, per=60, on_storm=stop)
        await hammer(alarm.call, PAUSE)
    return alarm.meter.statistics("paid").calls, trio.current_time()


class Books(Instrument):
    """Write down what was spent when a day's money was gone."""

    def __init__(self) -> None:
        self.days: list[Decimal] = []

    def spend_stopped(self, event: SpendStopped, /) -> None:
        self.days.append(event.spent)


async def spent_under_a_guard(price: Decimal) -> tuple[Decimal, int]:
    """Return what the loop spends in all, and on how many days it was stopped."""
    books = Books()
    spend = SpendGuard(BATCH * price / MILLION, LIMIT, per="day", wall=wall, instruments=[books])
    await hammer(spend.call, BATCH * PAUSE)
    last = spend.statistics()
    return sum(books.days, Decimal(0) if last.stopped else last.spent), len(books.days)


def show_weekend() -> None:
    calls = run_virtual(unguarded_calls)
    through, seconds = run_virtual(calls_under_an_alarm)
    print(f"\nA loop of a million calls an hour, {FRIDAY:%A %H:%M} to {MONDAY:%A %H:%M}: {calls:,} calls in 63 h.")
    print(f"The alarm (1000 calls a minute) rang after {through:,} calls, {seconds:.1f} s.")
    print(f"{'':<20}{'$ a million':>12}{'unguarded $':>14}{'alarm $':>12}{'guard, $1 a day':>18}")
    for service, price in PRICES.items():
        spent, days = run_virtual(spent_under_a_guard, price)
        bill, rung = calls * price / MILLION, through * price / MILLION
        print(f"{service:<20}{price:>12}{bill:>14.2f}{rung:>12.6f}{f'{spent:.2f} in {days} days':>18}")


if __name__ == "__main__":
    show_layers()
    show_weekend()
