"""The children: ``python -m benchmarks.contenders NAME '{"n": 100000}'`` runs one contender once and prints JSON.

This file holds what is raced against: bare Trio, hand-written. `benchmarks.ours` holds the queue, `benchmarks.peers`
other libraries. A contender is an async function of keyword arguments, the number of jobs ``n`` among them; it is
warmed up with a few jobs, the garbage is collected, and then it is measured with the cyclic collector on. What it
returns is added to the CPU time of the whole (``cpu``, seconds; ``us``, microseconds a job).
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable

import trio

from benchmarks.measure import ABSENT, Reading

Contender = Callable[..., Awaitable[Reading]]
CONTENDERS: dict[str, Contender] = {}
WARM_UP = 1000


def contender(fn: Contender) -> Contender:
    """Register ``fn`` under its own name."""
    CONTENDERS[fn.__name__] = fn
    return fn


async def nothing(item: int) -> None:
    """Do the trivial job."""


class Stopwatch:
    """CPU time since it was made, and the splits taken on the way."""

    def __init__(self) -> None:
        self.started = time.process_time()

    def us_each(self, n: int) -> float:
        """Return the microseconds since the last call (or the start), for each of ``n``."""
        now = time.process_time()
        taken, self.started = now - self.started, now
        return taken / n * 1e6


class Sleeper:
    """The 1 ms body: counts itself, so that the peak is what really ran at once."""

    def __init__(self) -> None:
        self.running = self.peak = self.done = 0

    async def body(self, item: int) -> None:
        """Sleep for one millisecond as one of those that run."""
        self.running += 1
        self.peak = max(self.peak, self.running)
        await trio.sleep(0.001)
        self.running -= 1
        self.done += 1

    def reading(self, n: int) -> Reading:
        """Return the peak, having checked that none of ``n`` was lost or ran twice."""
        assert (self.done, self.running) == (n, 0), (self.done, self.running, n)
        return {"peak": self.peak}


async def pool(body: Callable[[int], Awaitable[None]], n: int, concurrency: int) -> Reading:
    """Run ``n`` jobs by workers on an unbounded memory channel: no handle, no result, no cancelling of one job."""
    send, receive = trio.open_memory_channel[tuple[Callable[[int], Awaitable[None]], int]](math.inf)

    async def worker() -> None:
        async for fn, item in receive:
            await fn(item)

    watch = Stopwatch()
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(worker)
        for i in range(n):
            send.send_nowait((body, i))
        submit = watch.us_each(n)
        send.close()
    return {"submit": submit, "drain": watch.us_each(n)}


@contender
async def bare_pool(*, n: int, concurrency: int) -> Reading:
    """Trivial jobs, ``send_nowait``."""
    return await pool(nothing, n, concurrency)


@contender
async def bare_pool_sleeps(*, n: int, concurrency: int) -> Reading:
    """Jobs that sleep 1 ms."""
    sleeper = Sleeper()
    await pool(sleeper.body, n, concurrency)
    return sleeper.reading(n)


@contender
async def bare_pool_send(*, n: int, concurrency: int, bound: int) -> Reading:
    """Trivial jobs, ``await send`` into a bounded channel."""
    send, receive = trio.open_memory_channel[tuple[Callable[[int], Awaitable[None]], int]](bound)

    async def worker() -> None:
        async for fn, item in receive:
            await fn(item)

    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(worker)
        for i in range(n):
            await send.send((nothing, i))
        send.close()
    return {}


@contender
async def nursery_a_call(*, n: int) -> Reading:
    """A trivial call in a task of its own, waited for, one after the other."""
    for i in range(n):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nothing, i)
    return {}


@contender
async def checkpoints(*, n: int) -> Reading:
    """One full checkpoint each, with one task to run."""
    for _ in range(n):
        await trio.lowlevel.checkpoint()
    return {}


async def measured(fn: Contender, n: int, parameters: dict[str, object]) -> Reading:
    """Run ``fn`` once on a clean heap."""
    gc.collect()
    start = time.process_time()
    extra = await fn(n=n, **parameters)
    cpu = time.process_time() - start
    return {"cpu": cpu, "us": cpu / n * 1e6} | extra


def main(name: str, n: int, warm_up: int = WARM_UP, **parameters: object) -> Reading:
    """Run the contender ``name``: warmed up with ``warm_up`` jobs, then measured with ``n``."""
    for module in ("benchmarks.peers", "benchmarks.ours"):
        if name not in CONTENDERS:  # the bare ones run without us in memory
            importlib.import_module(module)
    fn = CONTENDERS[name]
    trio.run(measured, fn, min(warm_up, n), parameters)
    return trio.run(measured, fn, n, parameters)


if __name__ == "__main__":
    from benchmarks import contenders  # not __main__: the other files register themselves there

    try:
        print(json.dumps(contenders.main(sys.argv[1], **json.loads(sys.argv[2]))))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(("trio_orchestrator", "benchmarks")):
            raise
        print(error, file=sys.stderr)
        sys.exit(ABSENT)
