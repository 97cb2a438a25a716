"""A slot moves from one node to another while everybody reads and writes its keys: no answer is wrong.

Run it: python examples/redis_cluster.py    (six Valkey nodes of its own)
"""

from __future__ import annotations

from collections import Counter

import trio

from trio_orchestrator.redis import CrossSlotError, RedisCluster, open_redis_cluster
from trio_orchestrator.testing import RedisClusterServers, open_redis_cluster_servers

KEYS = [f"{{basket}}:{number}" for number in range(200)]
CLIENTS = 10


async def count_up(redis: RedisCluster, first: int, counted: Counter[str]) -> None:
    """Increment keys, one after another; each answer must be one more than the last."""
    while True:
        for key in KEYS[first::CLIENTS]:
            value = await redis.incr(key)
            counted[key] += 1
            assert value == counted[key], (key, value, counted[key])


async def migrate(servers: RedisClusterServers, slot: int) -> None:
    """Move a slot as an operator would, key by key."""
    source = servers.master_of(slot)
    target = next(master for master in servers.masters if master is not source)
    old, new = (server.command("CLUSTER", "MYID") for server in (source, target))
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", old)
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", new)
    while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 10):
        source.command("MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *keys)
        await trio.sleep(0.02)  # meanwhile some keys are here, and some are there
    for server in (target, source, *servers.masters):
        server.command("CLUSTER", "SETSLOT", slot, "NODE", new)


async def main() -> None:
    counted: Counter[str] = Counter()
    async with open_redis_cluster_servers() as servers:
        urls = [node.url for node in servers.nodes[:2]]
        async with open_redis_cluster(*urls) as redis:
            slot = int(servers.nodes[0].command("CLUSTER", "KEYSLOT", KEYS[0]))
            async with trio.open_nursery() as clients:
                for first in range(CLIENTS):
                    clients.start_soon(count_up, redis, first, counted)
                await trio.sleep(0.5)
                before = counted.total()
                await migrate(servers, slot)
                during = counted.total() - before
                await trio.sleep(0.5)
                clients.cancel_scope.cancel()
            figures = redis.statistics()
            print(
                f"slot {slot} moved with {len(KEYS)} keys; {counted.total():,} increments, {during:,} of them meanwhile"
            )
            print(f"MOVED {figures.moved}, ASK {figures.asked}, the map was read {figures.refreshes} times")
            values = [int(value or 0) for value in await redis.mget(KEYS)]
            late = sum(values) - counted.total()
            print(f"the cluster counts {sum(values):,}: {late} increments were cancelled after they had been sent")
            try:
                await redis.mget("one", "another")
            except CrossSlotError as error:
                print(f"CrossSlotError, before anything was sent: {error}")
            assert figures.moved
            assert figures.asked
            assert 0 <= late <= CLIENTS


if __name__ == "__main__":
    trio.run(main)
