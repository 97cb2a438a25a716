"""Much at once: ten thousand calls in flight, huge values, a script that keeps the server; beside small calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import trio

from benchmarks.redis_load import KNOWN, Tally
from benchmarks.redis_promise import GRACE, Promise, afterwards, get_known, in_time, until
from trio_orchestrator.redis import Redis, open_redis
from trio_orchestrator.testing.server import RedisServer

WINDOW: Final = 10_000
BEYOND: Final = 2_000
MIB: Final = 1 << 20
BIGGEST: Final = 64 * MIB
BUSY_AFTER: Final = 100
"""Milliseconds after which the server tells others that a script keeps it busy."""
KEEP_BUSY: Final = """
local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
local over = now() + ARGV[1]
while now() < over do end
return ARGV[2]
"""


async def again(seconds: float, fn: Callable[[], Awaitable[None]]) -> int:
    """Do something once, and again while so many seconds last; return how often."""
    over, times = trio.current_time() + seconds, 0
    while not times or trio.current_time() < over:
        await fn()
        times += 1
    return times


async def flood(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """A stopped server has 10,000 calls in flight and 2,000 more before the window; awake, it answers all of them."""
    name, tally, rounds = "flood", Tally(), 0
    async with open_redis(server.url, command_timeout=GRACE, silent_after=GRACE, max_in_flight=WINDOW) as redis:

        async def once() -> None:
            server.stop()
            try:
                async with trio.open_nursery() as nursery:
                    for _ in range(WINDOW + BEYOND):
                        nursery.start_soon(get_known, redis, tally, rng.randrange(KNOWN))
                    await until(lambda: is_full(redis))
                    server.wake()
            finally:
                server.wake()

        async def load() -> None:
            nonlocal rounds
            rounds = await again(seconds, once)

        ended = await in_time(seconds, load)
        checks = await afterwards(name, redis)
        left = redis.statistics()
    return [
        Promise(name, "floods", rounds, least=1),
        Promise(name, "answered", tally.answered, least=rounds * (WINDOW + BEYOND)),
        Promise(name, "failed", tally.failed, most=0, why=tally.why),
        Promise(name, "wrong", tally.wrong, most=0),
        Promise(name, "hung", not ended, most=0),
        Promise(name, "connections dropped", left.lost + left.connections - 1, most=0),
        *checks,
    ]


def is_full(redis: Redis) -> bool:
    """Return whether the window is full, and the rest waits before it."""
    now = redis.statistics()
    return (now.in_flight + now.queued, now.waiting) == (WINDOW, BEYOND)


async def beside(redis: Redis, tally: Tally, slowest: list[float]) -> None:
    """Get known keys until cancelled; note how long it took at most."""
    which = 0
    while True:
        began = trio.current_time()
        with trio.CancelScope(shield=True):  # the last one ends too
            await get_known(redis, tally, which)
        slowest[0] = max(slowest[0], trio.current_time() - began)
        which = (which + 1) % KNOWN
        await trio.sleep(0.001)


async def big(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """A value of 64 MiB goes and comes back intact, beside small calls on the same link, and on a sibling."""
    name, value, intact = "big", rng.randbytes(int(min(BIGGEST, 16 * MIB * seconds))), 0
    same, apart, slowest_same, slowest_apart = Tally(), Tally(), [0.0], [0.0]
    async with open_redis(server.url, command_timeout=2 * GRACE) as redis, redis.sibling() as sibling:

        async def once() -> None:
            nonlocal intact
            await redis.set("big", value)
            got = await redis.get("big")
            intact += got == value

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside, redis, same, slowest_same)
            nursery.start_soon(beside, sibling, apart, slowest_apart)
            rounds = await again(seconds, once)
            nursery.cancel_scope.cancel()
        checks = await afterwards(name, redis)
        left, other = redis.statistics(), sibling.statistics()
    return [
        Promise(name, "MiB of the value", len(value) / MIB),
        Promise(name, "came back intact", intact, least=rounds),
        Promise(name, "small calls beside it, answered", same.answered, least=1),
        Promise(name, "small calls on the sibling, answered", apart.answered, least=10 * seconds),
        Promise(name, "failed", same.failed + apart.failed, most=0, why=same.why or apart.why),
        Promise(name, "wrong", same.wrong + apart.wrong, most=0),
        Promise(name, "ms at most beside it", slowest_same[0] * 1000),
        Promise(name, "ms at most on the sibling", slowest_apart[0] * 1000, most=1000),
        Promise(name, "connections dropped", left.lost + other.lost, most=0),
        *checks,
    ]


async def slow_script(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """A script keeps the server for longer than a silent one is borne; quick calls on a sibling are told, or wait."""
    name, keep, right = "slow_script", min(3.0, seconds / 2), 0
    tally, slowest = Tally(), [0.0]
    before = server.command("CONFIG", "GET", "busy-reply-threshold")[1]
    server.command("CONFIG", "SET", "busy-reply-threshold", str(BUSY_AFTER))
    async with open_redis(server.url, command_timeout=keep + GRACE, silent_after=keep / 2) as redis:
        async with redis.sibling() as sibling, trio.open_nursery() as nursery:

            async def once() -> None:
                nonlocal right
                token = rng.randbytes(8)
                got = await redis.eval(KEEP_BUSY, 0, int(keep * 1000), token)
                right += got == token

            nursery.start_soon(beside, sibling, tally, slowest)
            rounds = await again(seconds, once)
            nursery.cancel_scope.cancel()
        checks = await afterwards(name, redis)
        left = redis.statistics()
    server.command("CONFIG", "SET", "busy-reply-threshold", before)
    busy = sum(count for text, count in tally.errors.items() if "BUSY" in text)
    return [
        Promise(name, "scripts, answered right", right, least=rounds),
        Promise(name, "quick calls, answered", tally.answered),
        Promise(name, "quick calls, refused as BUSY", busy, least=1),
        Promise(name, "failed otherwise", tally.failed - busy, most=0, why=tally.why),
        Promise(name, "wrong", tally.wrong, most=0),
        Promise(name, "seconds at most on the sibling", slowest[0], most=BUSY_AFTER / 1000 + 0.5),
        Promise(name, "connections dropped", left.lost + left.connections - 1, most=0),
        *checks,
    ]
