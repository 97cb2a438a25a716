"""Trouble that a client meets: deadlines that are too short, connections that are killed, servers that stall."""

from __future__ import annotations

import math
import secrets
from random import Random
from typing import Final, final

import trio
from redis.backoff import FullJitterBackoff

from benchmarks.redis_load import KNOWN, PAUSE, STALL, STALLS, Tally, cancelled_load, disturbed
from benchmarks.redis_peers import RELEASE, Client, TrioWorld
from benchmarks.redis_promise import GRACE, Promise, afterwards, every_task, get_known, in_time, until
from trio_orchestrator.redis import Redis, open_redis
from trio_orchestrator.testing.proxy import open_fault_proxy
from trio_orchestrator.testing.server import RedisServer

TASKS: Final = 200


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
            Promise(name, "calls", tally.calls, least=1000 * seconds),
            Promise(name, "answered", tally.answered, least=250 * seconds if pause else 0),
            Promise(name, "cancelled", tally.cancelled, least=1),
            Promise(name, "failed", tally.failed, most=0, why=tally.why),
            Promise(name, "wrong", tally.wrong, most=0),
            Promise(name, "hung", not ended, most=0),
            Promise(name, "stalls of the server", len(stalls), least=seconds),
            Promise(name, "reconnects", redis.statistics().connections - 1, most=5),
            *await afterwards(name, redis),
        ]


async def cancels(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """200 tasks that pause between calls with deadlines of 0 to 2 ms, while the server stalls 40 times a second."""
    return await _under_cancels("cancels", server, seconds, rng, PAUSE)


async def overload(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """The same without pauses: more than can be done."""
    return await _under_cancels("overload", server, seconds, rng, 0)


async def locks(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """Locks acquired under deadlines of 0 to 2 ms; a cancelled acquisition posts its release behind it.

    The tasks pause between two turns for half of the time, and then do not.
    """
    name, held, doubly, acquired, cancelled, pause = "locks", set[str](), 0, 0, 0, PAUSE
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
            await trio.sleep(rng.uniform(0, pause))

        with disturbed(server, 1 / STALLS, *STALL):
            hung = await every_task(TASKS, seconds / 2, act)
            pause = 0
            hung += await every_task(TASKS, seconds / 2, act)
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
        Promise(name, "reads failed", tally.failed, most=0, why=tally.why),
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


async def stalls(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """The server sleeps, up to 3 seconds at a time: a second connection is tried, the first is kept."""
    name, tally, counted, stall = "stalls", Tally(), 0, min(3.0, seconds / 2.5)
    async with open_redis(server.url, command_timeout=3 * stall + GRACE, silent_after=stall / 2) as redis:

        async def act(n: int) -> None:
            nonlocal counted
            if await redis.incr(f"counter:{n}"):
                counted += 1
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
        Promise(name, "failed", tally.failed, most=0, why=tally.why),
        Promise(name, "wrong", tally.wrong, most=0),
        Promise(name, "hung", hung, most=0),
        Promise(name, "writes lost, by the server's count", abs(total - counted), most=0),
        Promise(name, "connections dropped", left.lost + left.connections - 1, most=0),
        *checks,
    ]


DEADLINE: Final = 0.4
"""Seconds that a call into a black hole has: the client's, or less by a scope around it."""
MARGIN: Final = 0.25
"""Seconds by which a busy machine may be late."""


async def black_hole(server: RedisServer, seconds: float, rng: Random) -> list[Promise]:
    """A network that swallows everything: each call ends by its deadline; the link is replaced when the net is back."""
    name, tally, latest, holes = "black_hole", Tally(), 0.0, 0
    async with (
        open_fault_proxy(server.address, rng=rng) as proxy,
        open_redis(
            f"redis://{proxy.host}:{proxy.port}",
            command_timeout=DEADLINE,
            silent_after=DEADLINE / 2,
            connect_timeout=DEADLINE,
            reconnect=FullJitterBackoff(cap=0.1, base=0.05),
        ) as redis,
    ):

        async def act(n: int) -> None:
            nonlocal latest
            within = rng.uniform(0.05, DEADLINE) if n % 2 else math.inf
            began = trio.current_time()
            with trio.move_on_after(within) as scope:
                await get_known(redis, tally, rng.randrange(KNOWN))
            tally.cancelled += scope.cancelled_caught
            latest = max(latest, trio.current_time() - began - min(within, DEADLINE))
            await trio.sleep(rng.uniform(0, 0.01))

        async def trouble() -> None:
            nonlocal holes
            while True:
                await trio.sleep(0.1)
                proxy.black_hole()
                await until(lambda: redis.statistics().doubted)
                proxy.mend()  # the bytes that are lost are missing; but nothing is sent there while it is doubted
                known = redis.statistics().connections
                await until(lambda: redis.statistics().connections > known)  # noqa: B023
                holes += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble)
            hung = await every_task(50, seconds, act)
            nursery.cancel_scope.cancel()
        proxy.mend()
        await until(lambda: not redis.statistics().doubted)
        checks = await afterwards(name, redis)
        left = redis.statistics()
    return [
        Promise(name, "black holes, and links replaced", holes, least=seconds / 2),
        Promise(name, "connections lost", left.lost, least=holes),
        Promise(name, "answered", tally.answered, least=100 * seconds),
        Promise(name, "ended by a deadline", tally.cancelled + tally.failed, least=1),
        Promise(name, "wrong", tally.wrong, most=0),
        Promise(name, "hung", hung, most=0),
        Promise(name, "seconds late at most", latest, most=MARGIN),
        *checks,
    ]
