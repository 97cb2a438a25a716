"""The figures of `retry.call`: CPU time of a successful call, and of one failure followed by a retry without a pause.

Everything runs in this process, alternated. A peer's ratio says how many times our price it costs.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import trio

from benchmarks.measure import Figure, alternate, judged, median, median_ratio
from trio_orchestrator.algorithms.backoff import FullJitter
from trio_orchestrator.policies.retry import Retry

FIGURES = (
    "retry_success",
    "retry_one_failure",
    "peer_tenacity_success",
    "peer_tenacity_one_failure",
    "peer_stamina_success",
    "peer_stamina_one_failure",
    "peer_backoff_success",
)

Work = Callable[[], Awaitable[int]]
Retried = Callable[[Work], Work]
ATTEMPTS = 3


async def succeed() -> int:
    """Do the trivial work."""
    return 1


class Flaky:
    """Fails on every odd call."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> int:
        """Fail, or do the trivial work."""
        self.calls += 1
        if self.calls % 2:
            raise ValueError
        return 1


# ------------------------------------------------------------------------------------------------ contenders


def hand_written(fn: Work) -> Work:
    """Retry at once, without a checkpoint."""

    async def call() -> int:
        for attempt in range(ATTEMPTS):
            try:
                return await fn()
            except ValueError:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError

    return call


def hand_written_checkpoint(fn: Work) -> Work:
    """Retry after a checkpoint."""

    async def call() -> int:
        for attempt in range(ATTEMPTS):
            try:
                return await fn()
            except ValueError:
                if attempt == ATTEMPTS - 1:
                    raise
                await trio.lowlevel.checkpoint()
        raise AssertionError

    return call


RETRY = Retry(on=ValueError, attempts=ATTEMPTS, backoff=FullJitter(base=0))


def tenacity(fn: Work) -> Work:
    """Decorate with tenacity's `retry`."""
    peer = importlib.import_module("tenacity")

    async def call() -> int:
        return await fn()

    when, stop = peer.retry_if_exception_type(ValueError), peer.stop_after_attempt(ATTEMPTS)
    decorated: Work = peer.retry(stop=stop, wait=peer.wait_none(), retry=when, reraise=True, sleep=trio.sleep)(call)
    return decorated


def stamina(fn: Work) -> Work:
    """Decorate with stamina's `retry`, its hooks switched off."""
    peer = importlib.import_module("stamina")
    importlib.import_module("stamina.instrumentation").set_on_retry_hooks([])

    async def call() -> int:
        return await fn()

    decorated: Work = peer.retry(on=ValueError, attempts=ATTEMPTS, wait_initial=0, wait_max=0, wait_jitter=0)(call)
    return decorated


def backoff(fn: Work) -> Work:
    """Decorate with backoff's `on_exception`, its log silenced; needs asyncio."""
    peer = importlib.import_module("backoff")
    logging.getLogger("backoff").setLevel(logging.CRITICAL)

    async def call() -> int:
        return await fn()

    decorated: Work = peer.on_exception(peer.constant, ValueError, max_tries=ATTEMPTS, interval=0, jitter=None)(call)
    return decorated


# ------------------------------------------------------------------------------------------------- the clock


async def _us_each(call: Callable[..., Awaitable[Any]], n: int, *args: object) -> float:
    for _ in range(n // 10):
        await call(*args)
    began = time.process_time_ns()
    for _ in range(n):
        await call(*args)
    return (time.process_time_ns() - began) / n / 1000


def ours(work: Callable[[], Work], n: int) -> Callable[[], float]:
    """Return a contender: `retry.call`, as it is written in a program."""

    async def main() -> float:
        fn = work()
        for _ in range(n // 10):
            await RETRY.call(fn)
        began = time.process_time_ns()
        for _ in range(n):
            await RETRY.call(fn)
        return (time.process_time_ns() - began) / n / 1000

    return lambda: trio.run(main)


def theirs(retried: Retried, work: Callable[[], Work], n: int) -> Callable[[], float]:
    """Return a contender on Trio."""
    return lambda: trio.run(_us_each, retried(work()), n)


def theirs_on_asyncio(retried: Retried, work: Callable[[], Work], n: int) -> Callable[[], float]:
    """Return a contender on asyncio."""
    return lambda: asyncio.run(_us_each(retried(work()), n))


def successes(n: int) -> dict[str, Callable[[], float]]:
    """Return the contenders of a successful call."""
    slow = n // 20
    return {
        "ours": ours(lambda: succeed, n),
        "hand-written": theirs(hand_written, lambda: succeed, n),
        "peer_tenacity_success": theirs(tenacity, lambda: succeed, slow),
        "peer_stamina_success": theirs(stamina, lambda: succeed, slow),
        "peer_backoff_success": theirs_on_asyncio(backoff, lambda: succeed, slow),
    }


def failures(n: int) -> dict[str, Callable[[], float]]:
    """Return the contenders of one failure and one retry at once."""
    slow = n // 20
    return {
        "ours": ours(Flaky, n),
        "hand-written": theirs(hand_written_checkpoint, Flaky, n),
        "peer_tenacity_one_failure": theirs(tenacity, Flaky, slow),
        "peer_stamina_one_failure": theirs(stamina, Flaky, slow),
    }


def race(figure: str, contenders: dict[str, Callable[[], float]], rounds: int) -> Iterator[Figure]:
    """Alternate the contenders; yield our figure, and one a peer."""
    readings = alternate(contenders, rounds)
    yield judged(figure, median(readings["ours"]), median_ratio(readings["ours"], readings["hand-written"]))
    for peer in list(contenders)[2:]:
        if peer in readings:
            yield judged(peer, median(readings[peer]), median_ratio(readings[peer], readings["ours"]))
        else:
            yield judged(peer, None)


def figures(quick: bool) -> Iterator[Figure]:
    """Yield every figure of this module."""
    rounds, n = (9, 20_000) if quick else (25, 100_000)
    yield from race("retry_success", successes(n), rounds)
    yield from race("retry_one_failure", failures(n // 10), rounds)
