"""A thousand counters behind a slow line: single trips, many tasks, a pipeline, a transaction; what each costs.

Run it: python examples/redis_counters.py    (a Valkey server of its own, behind a proxy that delays 1 ms each way)
"""

from __future__ import annotations

# mypy: disable-error-code="unused-awaitable"
# What is queued is not awaited.
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from trio_orchestrator.redis import Redis, open_redis
from trio_orchestrator.testing import FaultProxy, open_fault_proxy, open_redis_server

COUNTERS = 1000
DELAY = 0.001
TASKS = 100


async def one_after_another(redis: Redis) -> None:
    for number in range(COUNTERS):
        await redis.hincrby("counters", f"field-{number}")


async def in_many_tasks(redis: Redis) -> None:
    async def some(first: int) -> None:
        for number in range(first, COUNTERS, TASKS):
            await redis.hincrby("counters", f"field-{number}")

    async with trio.open_nursery() as nursery:
        for first in range(TASKS):
            nursery.start_soon(some, first)


async def in_one_pipeline(redis: Redis, *, transaction: bool = False) -> None:
    async with redis.pipeline(transaction=transaction) as pipe:
        for number in range(COUNTERS):
            pipe.hincrby("counters", f"field-{number}")
        await pipe.execute()


async def in_one_transaction(redis: Redis) -> None:
    await in_one_pipeline(redis, transaction=True)


WAYS: dict[str, Callable[[Redis], Awaitable[None]]] = {
    "one after another": one_after_another,
    f"in {TASKS} tasks": in_many_tasks,
    "one pipeline": in_one_pipeline,
    "one MULTI/EXEC": in_one_transaction,
}


@dataclass
class Row:
    way: str
    seconds: float
    writes: int
    """What the client sent, in pieces as they came to the proxy."""
    answers: int
    """What the server answered, in pieces as they came to the proxy."""
    sent: int
    """What the client sent, in bytes."""

    @property
    def trips(self) -> int:
        """At most so many times somebody waited for the line: each time something went, and something came back."""
        return min(self.writes, self.answers)


async def measured(way: str, redis: Redis, proxy: FaultProxy) -> Row:
    there, back = proxy.requests, proxy.replies
    writes, answers, sent, began = there.chunks, back.chunks, there.arrived, trio.current_time()
    await WAYS[way](redis)
    took = trio.current_time() - began
    return Row(way, took, there.chunks - writes, back.chunks - answers, there.arrived - sent)


def show(rows: list[Row]) -> None:
    print(f"\n{COUNTERS} times HINCRBY, at least {2000 * DELAY:g} ms a round trip, as the proxy saw it\n")
    print(f"{'':20}{'time':>10}{'round trips':>13}{'writes':>8}{'answers':>9}{'bytes sent':>12}")
    for row in rows:
        print(f"{row.way:20}{row.seconds * 1000:>7.0f} ms{row.trips:>13}{row.writes:>8}{row.answers:>9}{row.sent:>12,}")


async def main() -> None:
    async with (
        open_redis_server() as server,
        open_fault_proxy(server.address) as proxy,
        open_redis(f"redis://{proxy.host}:{proxy.port}") as redis,
    ):
        proxy.requests.delay = proxy.replies.delay = DELAY
        rows = [await measured(way, redis, proxy) for way in WAYS]
        show(rows)
        counters = server.command("HVALS", "counters")  # asked of the server itself, not through the client
    print(f"\nthe server counts {sum(map(int, counters)):,} in {len(counters):,} fields")
    assert list(map(int, counters)) == [len(WAYS)] * COUNTERS
    single, tasks, pipeline, transaction = rows
    assert single.trips == single.writes == COUNTERS
    assert single.seconds >= COUNTERS * 2 * DELAY
    assert tasks.trips < COUNTERS / 5
    assert max(pipeline.trips, transaction.trips) < COUNTERS / 50


if __name__ == "__main__":
    trio.run(main)
