"""A slot moves from one node to another while everybody reads and writes its keys: no answer is wrong.

Run it: python examples/redis_cluster.py    (six Valkey nodes of its own)
"""

from __future__ import annotations

import random
from collections import Counter

import trio

from trio_orchestrator.redis import CrossSlotError, RedisCluster, open_redis_cluster
from trio_orchestrator.testing import RedisClusterServers, RedisServer, open_redis_cluster_servers

KEYS = [f"{{basket}}:{number}" for number in range(200)]
WRITERS, READERS, TOGETHER = 8, 4, 3
REDIRECTIONS = "MOVED", "ASK", "TRYAGAIN"


class Clients:
    """Readers and writers of the keys. Each key has one writer, so that everybody knows what its value may be."""

    def __init__(self, redis: RedisCluster) -> None:
        self.redis = redis
        self.counted: Counter[str] = Counter()
        self.read = 0

    async def write(self, first: int) -> None:
        """Increment keys, one after another; each answer must be one more than the last."""
        while True:
            for key in KEYS[first::WRITERS]:
                value = await self.redis.incr(key)
                self.counted[key] += 1
                assert value == self.counted[key], (key, value, self.counted[key])
                await trio.sleep(0.001)

    async def look(self, number: int) -> None:
        """Read some keys at once; no value is older than what was there before, or newer than what can be there."""
        chance = random.Random(number)
        while True:
            keys = chance.sample(KEYS, TOGETHER)
            before = [self.counted[key] for key in keys]
            values = [int(value or 0) for value in await self.redis.mget(keys)]
            for key, least, value in zip(keys, before, values, strict=True):
                assert least <= value <= self.counted[key] + 1, (key, least, value, self.counted[key])
            self.read += 1
            await trio.sleep(0.001)


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


def figure(servers: RedisClusterServers, section: str, name: str) -> int:
    """Return how many times the nodes say that something has happened: `calls=` or `count=` of a section of INFO."""

    def of(server: RedisServer) -> int:
        return int(server.info(section).get(name, "=0").split(",")[0].split("=")[1])

    return sum(map(of, servers.nodes))


async def show_cross_slot(servers: RedisClusterServers, redis: RedisCluster) -> None:
    before = figure(servers, "commandstats", "cmdstat_mget")
    try:
        await redis.mget("one", "another")
    except CrossSlotError as error:
        print(f"CrossSlotError: {error}")
    else:
        raise AssertionError("keys in two slots were accepted")
    sent = figure(servers, "commandstats", "cmdstat_mget") - before
    refused = figure(servers, "errorstats", "errorstat_CROSSSLOT")
    print(f"of that {sent} were sent: the nodes have refused {refused}")
    assert sent == refused == 0


async def main() -> None:
    async with open_redis_cluster_servers() as servers, open_redis_cluster(servers.url) as redis:
        clients = Clients(redis)
        slot = int(servers.nodes[0].command("CLUSTER", "KEYSLOT", KEYS[0]))
        source = servers.master_of(slot)
        async with trio.open_nursery() as nursery:
            for first in range(WRITERS):
                nursery.start_soon(clients.write, first)
            for number in range(READERS):
                nursery.start_soon(clients.look, number)
            await trio.sleep(0.5)
            before, read_before = clients.counted.total(), clients.read
            await migrate(servers, slot)
            during, read_during = clients.counted.total() - before, clients.read - read_before
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        print(f"slot {slot} moved with {len(KEYS)} keys, from {source.port} to {servers.master_of(slot).port}")
        print(f"{clients.counted.total():,} increments, {during:,} of them meanwhile")
        print(f"{clients.read:,} times {TOGETHER} keys were read, {read_during:,} of them meanwhile")
        seen = redis.statistics()
        said = {name: figure(servers, "errorstats", f"errorstat_{name}") for name in REDIRECTIONS}
        print(f"the client followed {seen.moved} MOVED and {seen.asked} ASK, and tried again {seen.retried} times")
        print(f"the nodes said {said}")
        held = sum(int(value or 0) for value in await redis.mget(KEYS))
        late = held - clients.counted.total()
        print(f"the cluster counts {held:,}: {late} increments were cancelled after they had been sent")
        await show_cross_slot(servers, redis)
        assert servers.master_of(slot) is not source
        assert min(during, read_during, *said.values()) > 0
        assert (seen.moved, seen.asked) == (said["MOVED"], said["ASK"])
        assert seen.retried >= said["TRYAGAIN"]
        assert 0 <= late <= WRITERS


if __name__ == "__main__":
    trio.run(main)
