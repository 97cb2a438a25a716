"""Sentinels and the servers that they watch, in memory; each Sentinel says what it is told to say. For virtual time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import trio
from redis.backoff import ConstantBackoff

from tests.redis.scripted import Refusal, ScriptedServer, Session, open_scripted
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.client import Redis
from trio_orchestrator.redis.opening import open_planned_sentinel
from trio_orchestrator.redis.option import read_plan
from trio_orchestrator.redis.pipe import Pipe
from trio_orchestrator.redis.settings import read_target

NAME = "main"


class ScriptedSentinel:
    """One Sentinel. What it says of the master are its attributes."""

    def __init__(self, server: ScriptedServer, name: str, master: Address) -> None:
        self.server = server
        self.name = name
        self.master = master
        self.named: Address | None = None
        """What it answers to GET-MASTER-ADDR-BY-NAME, if that is another one: during a failover."""
        self.epoch = 1
        self.flags = "master"
        self.others: dict[str, Address] = {}
        """The other Sentinels that it knows, by their ids."""
        server._do_sentinel = self._answer  # type: ignore[attr-defined]

    def _answer(self, _session: Session, what: bytes, *name: bytes) -> Any:
        if name not in ((), (NAME.encode(),)):
            return Refusal("ERR No such master with that name")
        return getattr(self, f"_{what.decode().lower().replace('-', '_')}")()

    def _myid(self) -> Any:
        return self.name.encode()

    def _master(self) -> Any:
        return _described(
            self.master,
            flags=self.flags,
            **{"config-epoch": str(self.epoch), "num-other-sentinels": str(len(self.others))},
        )

    def _get_master_addr_by_name(self) -> Any:
        address = self.named or self.master
        return [address.host.encode(), b"%d" % address.port]

    def _sentinels(self) -> Any:
        return [_described(address, runid=name) for name, address in self.others.items()]

    def say(self, channel: str, *words: object) -> None:
        """Publish."""
        self.server.publish(channel.encode(), " ".join(map(str, words)).encode())

    def push(self, old: Address, new: Address, name: str = NAME) -> None:
        """Tell of a switch, without being of that mind."""
        self.say("+switch-master", name, old.host, old.port, new.host, new.port)

    def switch(self, new: Address, epoch: int | None = None) -> None:
        """Change its mind, and tell."""
        old, self.master, self.named = self.master, new, None
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.push(old, new)

    def go(self) -> None:
        """Be no longer there."""
        self.server.down = ConnectionRefusedError("gone")
        self.server.kill()

    def come(self) -> None:
        """Be there again."""
        self.server.down = None


def _described(address: Address, **facts: str) -> dict[bytes, bytes]:
    facts = {"ip": address.host, "port": str(address.port), **facts}
    return {key.encode(): value.encode() for key, value in facts.items()}


class Scene:
    """Three Sentinels, `s1` to `s3`, and two servers, of which `a` is master and `b` is not."""

    def __init__(self, servers: Mapping[Address, ScriptedServer], sentinels: Sequence[ScriptedSentinel]) -> None:
        self.servers = dict(servers)
        self.sentinels = list(sentinels)
        self.a, self.b = (server for address, server in servers.items() if address in (A, B))

    async def dial(self, address: Address, /) -> Pipe:
        """Connect to whatever is there."""
        await trio.lowlevel.checkpoint()
        if address not in self.servers:
            raise ConnectionRefusedError(f"nobody is at {address}")
        return await self.servers[address].dial(address)

    def open(
        self, *sentinels: int, name: str = NAME, passwords: str = "", **options: Any
    ) -> AbstractAsyncContextManager[Redis]:
        """Open a client that knows some of the Sentinels, by default all; between attempts it waits for 0.25 s."""
        plan = read_plan("redis://", {"reconnect": ConstantBackoff(0.25), **options})  # type: ignore[typeddict-item]
        urls = [f"redis://s{number}:26379" for number in sentinels or (1, 2, 3)]
        targets = [read_target(url, password=passwords or None) for url in urls]
        return open_planned_sentinel(name, plan, targets, self.dial)

    def promote(self, new: ScriptedServer) -> None:
        """Swap the roles."""
        for server in (self.a, self.b):
            server.role = "master" if server is new else "slave"

    async def settle(self) -> None:
        """Let everything happen that happens at once, or after one pause."""
        await trio.sleep(0.5)


A, B = Address("a", 6379), Address("b", 6379)


def place(number: int) -> Address:
    """Return where a Sentinel is."""
    return Address(f"s{number}", 26379)


@asynccontextmanager
async def open_scene() -> AsyncGenerator[Scene, None]:
    """Open it for the length of a block. Leaving it fails if a client left a connection open."""
    async with AsyncExitStack() as stack:
        servers = {
            address: await stack.enter_async_context(open_scripted()) for address in (A, B, *map(place, (1, 2, 3)))
        }
        servers[B].role = "slave"
        sentinels = [ScriptedSentinel(servers[place(number)], f"id{number}", A) for number in (1, 2, 3)]
        for one in sentinels:
            one.others = {other.name: place(number) for number, other in enumerate(sentinels, 1) if other is not one}
        yield Scene(servers, sentinels)
