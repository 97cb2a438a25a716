"""A cluster in memory, of scripted servers, each of which says what it is told to say. For virtual time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from redis.backoff import ConstantBackoff

from tests.redis.scripted import ScriptedServer, Session, open_scripted
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.cluster import RedisCluster
from trio_orchestrator.redis.cluster_opening import ReadFrom, open_planned
from trio_orchestrator.redis.option import read_plan
from trio_orchestrator.redis.pipe import Pipe
from trio_orchestrator.redis.slot import SLOTS

FIRST = 7000
"""The port of number 0."""

View = list[tuple[int, int, int, tuple[int, ...]]]
"""First slot, last slot, number of the master, numbers of its replicas."""


class ScriptedCluster:
    """Some servers; `views` is what each of them says of the cluster."""

    def __init__(self, servers: list[ScriptedServer]) -> None:
        self.servers = servers
        whole: View = [(0, SLOTS - 1, 0, ())]
        self.views: list[View] = [whole for _ in servers]
        self.asked = 0
        """How often one of them was asked for its view."""
        for number, server in enumerate(servers):
            server._do_cluster = self._teller(number)  # type: ignore[attr-defined]
            server._do_asking = lambda _session: "OK"  # type: ignore[attr-defined]

    def see(self, view: View) -> None:
        """Have all of them say the same."""
        self.views = [view for _ in self.servers]

    def _teller(self, number: int) -> Any:
        def tell(_session: Session, _what: bytes) -> Any:
            self.asked += 1
            return [_shard(*entry) for entry in self.views[number]]

        return tell

    async def dial(self, address: Address, /) -> Pipe:
        """Connect to the server of that port."""
        return await self.servers[address.port - FIRST].dial(address)

    def open(self, read_from: ReadFrom = "master", **options: Any) -> AbstractAsyncContextManager[RedisCluster]:
        """Open a client that knows the first one; between attempts to connect it waits for 1 s."""
        plan = read_plan(f"redis://cluster:{FIRST}", {"reconnect": ConstantBackoff(1), **options})  # type: ignore[typeddict-item]
        return open_planned(plan, [Address("cluster", FIRST)], read_from, self.dial)


def _shard(first: int, last: int, master: int, replicas: tuple[int, ...]) -> dict[str, Any]:
    nodes = [_node(master, "master"), *(_node(number, "replica") for number in replicas)]
    return {"slots": [first, last], "nodes": nodes}


def _node(number: int, role: str) -> dict[str, Any]:
    return {"id": str(number), "endpoint": "cluster", "port": FIRST + number, "role": role, "health": "online"}


@asynccontextmanager
async def open_scripted_cluster(size: int) -> AsyncGenerator[ScriptedCluster, None]:
    """Open some servers for the length of a block; at first all say that number 0 serves everything."""
    async with AsyncExitStack() as stack:
        yield ScriptedCluster([await stack.enter_async_context(open_scripted()) for _ in range(size)])
