"""Moving a slot of a real cluster from one master to another, step by step, by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trio_orchestrator.testing.cluster import RedisClusterServers
from trio_orchestrator.testing.server import RedisServer


class Move:
    """A slot on its way."""

    def __init__(self, cluster: RedisClusterServers, slot: int, target: RedisServer | None = None) -> None:
        self.cluster = cluster
        self.slot = slot
        self.source = cluster.master_of(slot)
        self.target = target or next(node for node in cluster.masters if node is not self.source)
        self.target_id: str = self.target.command("CLUSTER", "MYID")

    def begin(self) -> None:
        """From now on the source answers ASK for keys that it does not have."""
        source_id = self.source.command("CLUSTER", "MYID")
        self.target.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source_id)
        self.source.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target_id)

    def move(self, *keys: str) -> None:
        """Move some keys."""
        self.source.command("MIGRATE", self.target.host, self.target.port, "", 0, 2000, "KEYS", *keys)

    def move_all(self) -> None:
        """Move the keys that are left."""
        while keys := self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, 100):
            self.move(*keys)

    def end(self) -> None:
        """From now on the source answers MOVED."""
        for node in (self.target, self.source, *self.cluster.masters):
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", self.target_id)


@contextmanager
def moving(cluster: RedisClusterServers, slot: int) -> Iterator[Move]:
    """Begin to move a slot; when the block is left it is back where it was, with all its keys, wherever that was."""
    home = cluster.master_of(slot)
    there = Move(cluster, slot)
    there.begin()
    try:
        yield there
    finally:
        if cluster.master_of(slot) is home:
            there.move_all()
            there.end()
        back = Move(cluster, slot, home)
        back.begin()
        back.move_all()
        back.end()
