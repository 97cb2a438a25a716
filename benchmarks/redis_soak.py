"""Trouble for as long as you like, and what must hold in it: ``python -m benchmarks soak-redis --seconds 60 --only kills``.

Each soak opens a client of ours on a real server, breaks something for some seconds while many tasks call, and then
counts: at the callers, and at the server. All answers are checked. The plain tests run each for half a second.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final, final

import trio

from benchmarks.redis_load import KEYS, KNOWN, PAUSE, STALL, STALLS, VALUES, Tally, cancelled_load, disturbed, fill
from benchmarks.redis_peers import LATE, Client, TrioWorld
from trio_orchestrator.redis import Redis, open_redis
from trio_orchestrator.testing.server import RedisServer, open_redis_server

TASKS: Final = 200
GRACE: Final = 10.0
"""Seconds after which what should have ended hangs."""
AFTERWARDS: Final = 2000
"""Plain calls after the trouble, all of which must be right."""


@final
@dataclass(frozen=True, slots=True)
class Promise:
    """What was counted, and the bounds that were promised for it."""

    soak: str
    what: str
    value: float
    least: float = 0.0
    most: float = math.inf

    @property
    def kept(self) -> bool:
        """Whether it is within its bounds."""
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        low = f">= {self.least:g}" if self.least else ""
        high = f"<= {self.most:g}" if self.most < math.inf else ""
        bounds = f"{low} {high}".strip()
        verdict = "" if not bounds else "ok" if self.kept else "BROKEN"
        return f"{self.soak:12}{self.what:38}{self.value:>12.7g}  {bounds:12}{verdict}".rstrip()


Soak = Callable[[RedisServer, float, Random], Awaitable[list[Promise]]]
SOAKS: Final[dict[str, Soak]] = {}
SECONDS: Final[dict[str, float]] = {}
"""How long each lasts, if nothing is said."""


def soak(seconds: float) -> Callable[[Soak], Soak]:
    """Register a soak under its own name, and how long it lasts."""

    def register(fn: Soak) -> Soak:
        name = fn.__name__
        SOAKS[name], SECONDS[name] = fn, seconds
        return fn

    return register


def run(seconds: float | None, seed: int | None, only: Sequence[str] | None) -> int:
    """Run the soaks; print a line for each figure; return 1 if a promise was broken.

    Args:
        seconds: How long each lasts; None: as long as each does by itself.
        seed: Of all that is drawn; None: a fresh one, which is printed.
        only: The names of those to run; None: all.
    """
    seed, broken = secrets.randbelow(2**32) if seed is None else seed, False
    with open_redis_server(unix=True, tcp=True) as server:
        print(f"{server.identity}, seed {seed}", flush=True)
        for name in only or SOAKS:
            for promise in soaked(name, server, seconds or SECONDS[name], seed):
                print(promise, flush=True)
                broken |= not promise.kept
    return int(broken)


def soaked(name: str, server: RedisServer, seconds: float, seed: int) -> list[Promise]:
    """Run one soak on a server, which loses its data; return what came of it."""
    server.command("FLUSHALL")
    fill(server)
    return trio.run(SOAKS[name], server, seconds, Random(f"{name} {seed}"))


# ------------------------------------------------------------------------------------------------ what all of them need


async def in_time(seconds: float, fn: Callable[[], Awaitable[Any]]) -> bool:
    """Run what should end after so many seconds; return whether it did, with some grace."""
    with trio.move_on_after(seconds + GRACE) as scope:
        await fn()
    return not scope.cancelled_caught


async def every_task(tasks: int, seconds: float, act: Callable[[int], Awaitable[None]]) -> int:
    """Act in many tasks, again and again for so many seconds; return how many hung."""
    until, left = trio.current_time() + seconds, tasks

    async def task(n: int) -> None:
        nonlocal left
        while trio.current_time() < until:
            await act(n)
        left -= 1

    async def load() -> None:
        async with trio.open_nursery() as nursery:
            for n in range(tasks):
                nursery.start_soon(task, n)

    await in_time(seconds, load)
    return left


async def get_known(redis: Redis, tally: Tally, which: int) -> None:
    """Get a known key, and count how that ended."""
    try:
        answer = await redis.get(KEYS[which])
    except Exception:
        tally.failed += 1
    else:
        tally.take(answer, VALUES[which])


async def afterwards(name: str, redis: Redis) -> list[Promise]:
    """Return what must hold when the trouble is over: plain calls are right, and nothing is left on the link."""
    tally = Tally()
    for n in range(AFTERWARDS):
        await get_known(redis, tally, n % KNOWN)
    left = redis.statistics()
    return [
        Promise(name, "right afterwards", tally.answered, least=AFTERWARDS),
        Promise(name, "left on the link", left.in_flight + left.queued + left.waiting, most=0),
    ]


# ------------------------------------------------------------------------------------------------------------- cancels


async def _under_cancels(name: str, server: RedisServer, seconds: float, rng: Random, pause: float) -> list[Promise]:
    tally = Tally()
    async with open_redis(server.url) as redis:
        client = Client(redis.get, *[redis.get] * 4)

        async def load() -> None:
            nonlocal tally
            tally = await cancelled_load(TrioWorld(), client, seconds=seconds, pause=pause, tasks=TASKS, rng=rng)

        with disturbed(server, 1 / STALLS, *STALL) as stalls:
            ended = await in_time(seconds, load)
        return [
            Promise(name, "answered", tally.answered, least=250 * seconds),
            Promise(name, "cancelled", tally.cancelled, least=1),
            Promise(name, "failed", tally.failed, most=0),
            Promise(name, "wrong", tally.wrong, most=0),
            Promise(name, "hung", not ended, most=0),
            Promise(name, "stalls of the server", len(stalls), least=seconds),
            Promise(name, "reconnects", redis.statistics().connections - 1, most=5),
            *await afterwards(name, redis),
        ]


@soak(20)
async def cancels(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """200 tasks that pause between calls with deadlines of 0 to 2 ms, while the server stalls 40 times a second."""
    return await _under_cancels("cancels", server, seconds, rng, PAUSE)


@soak(8)
async def overload(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """The same without pauses: more than can be done."""
    return await _under_cancels("overload", server, seconds, rng, 0)


RELEASE: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


@soak(10)
async def locks(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """Locks acquired under deadlines of 0 to 2 ms; a cancelled acquisition posts its release behind it."""
    name, held, doubly, acquired, cancelled = "locks", set[str](), 0, 0, 0
    async with open_redis(server.url) as redis:
        release = await redis.script_load(RELEASE)

        async def acquire(key: str, token: str) -> bool:
            try:
                return bool(await redis.set(key, token, nx=True, px=60_000))
            except trio.Cancelled:
                redis.post("EVALSHA", release, 1, key, token)
                raise

        async def act(_n: int) -> None:
            nonlocal doubly, acquired, cancelled
            key, token, got = f"lock:{rng.randrange(KNOWN)}", secrets.token_hex(8), False
            with trio.move_on_after(rng.uniform(0, 0.002)) as scope:
                got = await acquire(key, token)
            cancelled += scope.cancelled_caught
            if got:
                acquired += 1
                doubly += key in held
                held.add(key)
                await trio.lowlevel.checkpoint()
                held.discard(key)
                await redis.evalsha(release, 1, key, token)
            await trio.sleep(rng.uniform(0, 0.01))

        with disturbed(server, 1 / STALLS, *STALL):
            hung = await every_task(TASKS, seconds, act)
        checks = await afterwards(name, redis)
    return [
        Promise(name, "acquired", acquired, least=100 * seconds),
        Promise(name, "cancelled", cancelled, least=10 * seconds),
        Promise(name, "held by two", doubly, most=0),
        Promise(name, "hung", hung, most=0),
        Promise(name, "leaked, by the server's count", len(server.command("KEYS", "lock:*")), most=0),
        *checks,
    ]


# --------------------------------------------------------------------------------------------------------------- kills


@final
class Ledger:
    """What one task has written by RPUSH, and what it was told about it."""

    def __init__(self, n: int) -> None:
        self.key: str = f"ledger:{n}"
        self.made = self.length = self.wrong = 0
        self.sure: list[str] = []
        self.maybe: set[str] = set()

    async def write(self, redis: Redis) -> None:
        """Add an entry that is like no other."""
        self.made += 1
        entry = str(self.made)
        try:
            length = await redis.rpush(self.key, entry)
        except Exception as error:
            if getattr(error, "sent", True):
                self.maybe.add(entry)
        else:
            self.sure.append(entry)
            self.wrong += not self.length < length <= self.made
            self.length = length

    def audit(self, server: RedisServer) -> tuple[int, int, int]:
        """Compare with the server: how many entries are lost, there twice, or there though they were never sent."""
        there: list[str] = server.command("LRANGE", self.key, "0", "-1")
        known = set(there)
        lost = len(set(self.sure) - known)
        return lost, len(there) - len(known), len(known - set(self.sure) - self.maybe)


@soak(6)
async def kills(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """The server ends all connections 10 times a second, while tasks read, and write each entry at most once."""
    name, tally, ledgers = "kills", Tally(), [Ledger(n) for n in range(50)]
    async with open_redis(server.url) as redis:

        async def act(n: int) -> None:
            await ledgers[n].write(redis)
            await get_known(redis, tally, rng.randrange(KNOWN))

        with disturbed(server, 0.1, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") as killed:
            hung = await every_task(len(ledgers), seconds, act)
        checks = await afterwards(name, redis)
        reconnects = redis.statistics().connections - 1
    audits = [ledger.audit(server) for ledger in ledgers]
    lost, twice, unsent = (sum(column) for column in zip(*audits, strict=True))
    return [
        Promise(name, "kills", len(killed), least=2 * seconds),
        Promise(name, "reconnects", reconnects, least=seconds),
        Promise(name, "reads answered", tally.answered, least=250 * seconds),
        Promise(name, "reads failed", tally.failed, most=0),
        Promise(name, "writes answered", sum(len(ledger.sure) for ledger in ledgers), least=250 * seconds),
        Promise(name, "writes that may have run", sum(len(ledger.maybe) for ledger in ledgers)),
        Promise(name, "wrong", tally.wrong + sum(ledger.wrong for ledger in ledgers), most=0),
        Promise(name, "hung", hung, most=0),
        Promise(name, "lost, by the server's count", lost, most=0),
        Promise(name, "ran twice, by the server's count", twice, most=0),
        Promise(name, "ran, though said to be unsent", unsent, most=0),
        *checks,
    ]


# ----------------------------------------------------------------------------------------------------- a silent server


@soak(10)
async def stalls(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """The server sleeps for up to 3 seconds at a time: it is doubted, a second connection is tried, the first is kept."""
    name, tally, counted, stall = "stalls", Tally(), 0, min(3.0, seconds / 2.5)
    async with open_redis(server.url, command_timeout=3 * stall + GRACE, silent_after=stall / 2) as redis:

        async def act(n: int) -> None:
            nonlocal counted
            counted += await redis.incr(f"counter:{n}") > 0
            await get_known(redis, tally, rng.randrange(KNOWN))

        before = int(server.info("stats")["total_connections_received"])
        with disturbed(server, 0.1, "DEBUG", "SLEEP", str(stall)) as stalled:
            hung = await every_task(50, seconds, act)
        tried = int(server.info("stats")["total_connections_received"]) - before - 2  # that of the stalls, and ours
        checks = await afterwards(name, redis)
        left = redis.statistics()
    total = sum(int(server.command("GET", f"counter:{n}") or 0) for n in range(50))
    return [
        Promise(name, "stalls", len(stalled), least=1),
        Promise(name, "second connections tried", tried, least=1),
        Promise(name, "answered", tally.answered, least=50),
        Promise(name, "failed", tally.failed, most=0),
        Promise(name, "wrong", tally.wrong, most=0),
        Promise(name, "hung", hung, most=0),
        Promise(name, "writes lost, by the server's count", abs(total - counted), most=0),
        Promise(name, "connections dropped", left.lost + left.connections - 1, most=0),
        *checks,
    ]
