"""The figures of the policies around one call: CPU time of a call that nothing stands against, and accuracy.

Everything runs in this process, alternated. A peer's ratio says how many times our price it costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import trio

from benchmarks import twins
from benchmarks.measure import Figure, alternate, judged, median, median_ratio
from benchmarks.twins import PLENTY, Work, succeed
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.trip import Consecutive
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.budget import RetryBudget
from trio_orchestrator.policies.bulkhead import Bulkhead
from trio_orchestrator.policies.rate import RateLimiter
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.stack import Stack
from trio_orchestrator.testing import run_virtual

FIGURES = (
    "breaker_closed",
    "breaker_guard",
    "half_open_crowd",
    "rate_try",
    "rate_acquire",
    "rate_accuracy",
    "rate_most_in_a_second",
    "stack_of_three",
    "stack_adds_limiter",
    "stack_adds_bulkhead",
    "stack_adds_adaptive",
    "peer_purgatory",
    "peer_aiobreaker",
    "peer_pybreaker",
    "peer_limits",
    "peer_pyrate",
    "peer_aiolimiter",
)

Contender = Callable[[], float]
Make = Callable[[], Awaitable[Work]]
PROBES = 7
CROWD = 1000
RATE = 1000
SECONDS = 3


# ------------------------------------------------------------------------------------------------- the clock


async def _us_each(make: Make, n: int) -> float:
    call = await make()
    for _ in range(n // 10):
        await call()
    began = time.process_time_ns()
    for _ in range(n):
        await call()
    return (time.process_time_ns() - began) / n / 1000


def on_trio(make: Make, n: int) -> Contender:
    """Return a contender: an async call, on Trio."""
    return lambda: trio.run(_us_each, make, n)


def on_asyncio(make: Make, n: int) -> Contender:
    """Return a contender: an async call, on asyncio."""
    return lambda: asyncio.run(_us_each(make, n))


def sync(make: Callable[[], Callable[[], object]], n: int) -> Contender:
    """Return a contender: a sync call, inside a run of Trio, whose clock ours ask."""

    async def main() -> float:
        call = make()
        for _ in range(n // 10):
            call()
        began = time.process_time_ns()
        for _ in range(n):
            call()
        return (time.process_time_ns() - began) / n / 1000

    return lambda: trio.run(main)


def through(policy: Callable[[], Policy]) -> Make:
    """Make a call of the trivial work through a policy, as it is written in a program."""

    async def make() -> Work:
        call = policy().call

        def work() -> Awaitable[object]:
            return call(succeed)

        return work

    return make


def race(figure: str, contenders: dict[str, Contender], rounds: int) -> Iterator[Figure]:
    """Alternate the contenders ("ours", "twin", peers); yield our figure, and one a peer."""
    readings = alternate(contenders, rounds)
    yield judged(figure, median(readings["ours"]), median_ratio(readings["ours"], readings["twin"]))
    for peer in list(contenders)[2:]:
        if peer in readings:
            yield judged(peer, median(readings[peer]), median_ratio(readings[peer], readings["ours"]))
        else:
            yield judged(peer, None)


# --------------------------------------------------------------------------------------------------- breaker


async def _twin_of_a_breaker() -> Work:
    breaker = twins.HandWrittenBreaker()
    return lambda: breaker.call(succeed)


async def _guarded() -> Work:
    breaker = CircuitBreaker()

    async def call() -> object:
        with breaker.guard():
            return await succeed()

    return call


def breaker_figures(n: int, rounds: int) -> Iterator[Figure]:
    """Yield the price of a closed breaker, and how many of a crowd are let in when it is half-open."""
    closed = {
        "ours": on_trio(through(CircuitBreaker), n),
        "twin": on_trio(_twin_of_a_breaker, n),
        "peer_purgatory": on_trio(twins.purgatory, n // 5),
        "peer_aiobreaker": on_trio(twins.aiobreaker, n // 5),
        "peer_pybreaker": on_trio(twins.pybreaker, n // 10),
    }
    yield from race("breaker_closed", closed, rounds)
    yield from race("breaker_guard", {"ours": on_trio(_guarded, n), "twin": on_trio(_twin_of_a_breaker, n)}, rounds)
    admitted = [run_virtual(_half_open_crowd, seed=seed) for seed in range(5)]
    worst = max(admitted, key=lambda count: abs(count - PROBES))
    yield judged("half_open_crowd", worst, abs(worst - PROBES) / PROBES)


async def _half_open_crowd() -> int:
    """Let a crowd come at the tick in which the cooldown is over; count in the body."""
    breaker, inside = CircuitBreaker(trip=Consecutive(1), cooldown=10, probes=PROBES), 0
    due = trio.current_time() + 10

    async def body() -> None:
        nonlocal inside
        inside += 1
        await trio.sleep(1)

    async def fail() -> None:
        raise OSError

    async def caller() -> None:
        await trio.sleep_until(due)
        try:
            await breaker.call(body)
        except CircuitOpenError:
            return

    with suppress(OSError):
        await breaker.call(fail)
    async with trio.open_nursery() as nursery:
        for _ in range(CROWD):
            nursery.start_soon(caller)
        await trio.sleep_until(due + 0.5)
        return inside  # at the tick; the block then waits for those who follow


# ---------------------------------------------------------------------------------------------- rate limiter


async def _twin_of_acquire() -> Work:
    return twins.HandWrittenGcra(PLENTY, PLENTY).acquire


async def _acquire() -> Work:
    return RateLimiter(PLENTY, burst=PLENTY).acquire


def rate_figures(n: int, rounds: int) -> Iterator[Figure]:
    """Yield the price of a start, and how exact a thousand starts a second are by the real clock."""
    tries = {
        "ours": sync(lambda: RateLimiter(PLENTY, burst=PLENTY).acquire_nowait, n),
        "twin": sync(lambda: twins.HandWrittenGcra(PLENTY, PLENTY).try_acquire, n),
        "peer_limits": sync(twins.limits, n // 50),
        "peer_pyrate": sync(twins.pyrate, n // 50),
    }
    yield from race("rate_try", tries, rounds)
    waits = {
        "ours": on_trio(_acquire, n // 4),
        "twin": on_trio(_twin_of_acquire, n // 4),
        "peer_aiolimiter": on_asyncio(twins.aiolimiter, n // 4),
    }
    yield from race("rate_acquire", waits, rounds)
    starts = trio.run(_starts_at_a_rate)
    counts = [sum(second <= at < second + 1 for at in starts) for second in range(SECONDS)]
    worst = max(counts, key=lambda count: abs(count - RATE))
    yield judged("rate_accuracy", worst, abs(worst - RATE) / RATE)
    most = _most_within_a_second(starts)
    yield judged("rate_most_in_a_second", most, most / RATE)


async def _starts_at_a_rate(tasks: int = 20) -> list[float]:
    """Let idle tasks compete for the starts of a limiter; return when each start was, in seconds from the first on."""
    limiter, starts = RateLimiter(RATE), list[float]()

    async def worker() -> None:
        while True:
            await limiter.acquire()
            starts.append(time.perf_counter())

    with trio.move_on_after(SECONDS + 0.25):
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(worker)
    return [at - starts[0] for at in starts]


def _most_within_a_second(starts: list[float]) -> int:
    most, first = 0, 0
    for last, at in enumerate(starts):
        while starts[first] <= at - 1:
            first += 1
        most = max(most, last - first + 1)
    return most


# ----------------------------------------------------------------------------------------------------- stack


def _three() -> Stack:
    return Stack(Retry(on=OSError), CircuitBreaker(), RetryBudget())


def _limiter() -> RateLimiter:
    return RateLimiter(PLENTY, burst=PLENTY)


def _bulkhead() -> Bulkhead:
    return Bulkhead(100)


async def _checkpoint() -> Work:
    return trio.lowlevel.checkpoint


def stack_figures(n: int, rounds: int) -> Iterator[Figure]:
    """Yield the price of three policies that do not wait, and what each that waits adds, against its price alone."""
    three = {"ours": on_trio(through(_three), n // 4), "twin": on_trio(_checkpoint, n // 4)}
    yield from race("stack_of_three", three, rounds)
    for name, member in (("limiter", _limiter), ("bulkhead", _bulkhead), ("adaptive", AdaptiveLimiter)):
        yield _added(f"stack_adds_{name}", member, n // 4, rounds)


def _added(figure: str, member: Callable[[], Policy], n: int, rounds: int) -> Figure:
    readings = alternate(
        {
            "with": on_trio(through(lambda: Stack(_three(), member())), n),
            "without": on_trio(through(_three), n),
            "alone": on_trio(through(member), n),
            "plain": on_trio(_plain, n),
        },
        rounds,
    )
    added = [a - b for a, b in zip(readings["with"], readings["without"], strict=True)]
    alone = [a - b for a, b in zip(readings["alone"], readings["plain"], strict=True)]
    return judged(figure, median(added), median_ratio(added, alone))


async def _plain() -> Work:
    return succeed


def figures(quick: bool) -> Iterator[Figure]:
    """Yield every figure of this module."""
    rounds, n = (9, 10_000) if quick else (25, 50_000)
    yield from breaker_figures(n, rounds)
    yield from rate_figures(n, rounds)
    yield from stack_figures(n, rounds)
