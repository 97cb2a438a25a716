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
    sent: int
    """Bytes that the proxy saw on the way to the server."""


async def measured(way: str, redis: Redis, proxy: FaultProxy) -> Row:
    began, sent = trio.current_time(), proxy.requests.passed
    await WAYS[way](redis)
    return Row(way, trio.current_time() - began, proxy.requests.passed - sent)


def show(rows: list[Row]) -> None:
    trip = 2 * DELAY
    print(f"\n{COUNTERS} times HINCRBY, {trip * 1000:g} ms a round trip\n")
    print(f"{'':20}{'time':>10}{'as round trips':>16}{'bytes sent':>13}")
    for row in rows:
        print(f"{row.way:20}{row.seconds * 1000:>7.0f} ms{row.seconds / trip:>16.0f}{row.sent:>13,}")


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
        assert sum(map(int, counters)) == COUNTERS * len(WAYS)
        assert rows[2].seconds < rows[0].seconds / 10


if __name__ == "__main__":
    trio.run(main)
