"""Where in a cluster a call goes: the map of its slots, kept by what its nodes say."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast, final

import trio
from redis.exceptions import AskError, AuthenticationError, MovedError, RedisClusterException, RedisError

from trio_orchestrator.block import emit
from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.connector import LinkSettings
from trio_orchestrator.redis.error import LinkError
from trio_orchestrator.redis.node import KEPT, Fleet, MakeServer, Node
from trio_orchestrator.redis.topology import Topology
from trio_orchestrator.redis_event import RedisFailover

Aim: TypeAlias = "int | Address"
"""A slot, whoever serves it; or one node, whatever it serves."""

FAILURES: Final = (RedisError, RedisClusterException, OSError, trio.ClosedResourceError)
"""All that a call may end with that its node, or the way to it, is to blame for."""

REFRESH_EVERY: Final = 0.1
"""Seconds between questions for the whole map, at least."""

REFRESH_ANYWAY: Final = 30.0
"""Seconds after which the map is asked for though nothing is wrong: replicas come without being noticed."""

STAGGER: Final = 0.25
"""Seconds until another node is asked as well."""


@final
@dataclass(slots=True)
class Counts:
    """What was learnt on the way."""

    moved: int = 0
    asked: int = 0
    retried: int = 0
    refreshes: int = 0
    failovers: int = 0


@final
class Router:
    """The map of a cluster and its nodes. All changes of the map are sync; only one task at a time asks for a new one.

    Args:
        name: For events.
        seeds: Where to ask first, and again when no known node answers.
        make: Makes the server of a node.
        settings: Bounds of time.
        tls: Whether the nodes are spoken with by TLS.
        read_from: Who answers what only reads: "master", "replica" or "any".
        close_within: Seconds that a node which is left has to answer what was sent.
    """

    def __init__(
        self,
        name: str,
        seeds: Iterable[Address],
        make: MakeServer,
        settings: LinkSettings,
        *,
        tls: bool,
        read_from: str,
        close_within: float,
    ) -> None:
        self._name = name
        self._seeds = tuple(seeds)
        self._tls = tls
        self._turns = itertools.count()
        self._wanted = trio.Event()
        self._told: Address | None = None
        self._asked = self._answered = 0
        self._news = trio.Event()
        self._home: Address | None = None
        self._on_failover = settings.hooks.of("redis_failover")
        self.read_from: str = read_from
        self.settings: LinkSettings = settings
        self.topology: Topology = Topology()
        self.fleet: Fleet = Fleet(make, self._doubt, close_within)
        self.counts: Counts = Counts()
        self.changed: trio.Event = trio.Event()
        """Set, and replaced by another one, when the map changes."""

    # ---------------------------------------------------------------------------------------------- nodes

    def locate(self, aim: Aim, *, reads: bool = False) -> Node:
        """Return the node that an aim means now. Sync.

        Args:
            aim: A slot or an address.
            reads: Whether it is for what only reads, so that it may be a replica, by `read_from`.

        Raises:
            SlotNotCoveredError: Nobody is known to serve the slot.
            trio.ClosedResourceError: The block was left.
        """
        if isinstance(aim, Address):
            return self.fleet.node(aim)
        master = self.topology.master_of(aim)
        if reads and self.read_from != "master":
            return self._reader(aim, master)
        node = self.fleet.node(master)
        if node.link.connection is None and node.is_lost:
            self.refresh_soon()
        return node

    def _reader(self, slot: int, master: Address) -> Node:
        """Return a node to read from, in turn; the master while no replica is connected."""
        replicas = self.topology.replicas_of(slot)
        candidates = replicas if self.read_from == "replica" else (master, *replicas)
        turn, count = next(self._turns), len(candidates)
        for number in range(count):
            address = candidates[(turn + number) % count]
            node = self.fleet.node(address, reads=address != master)
            if node.is_ready:
                return node
        return self.fleet.node(master)

    @property
    def home(self) -> Address:
        """One master, the same as long as it is one."""
        masters = self.topology.masters
        if self._home not in masters:
            self._home = masters[0]
        assert self._home is not None
        return self._home

    @property
    def any_master(self) -> Address:
        """A master, each in turn."""
        masters = self.topology.masters
        return masters[next(self._turns) % len(masters)]

    @property
    def any_ready(self) -> Address:
        """A node that is connected, each in turn; any node if none is."""
        ready = [node.address for node in self.fleet.nodes if node.is_ready] or sorted(self.topology.nodes, key=str)
        return ready[next(self._turns) % len(ready)]

    def first_slots(self) -> dict[Address, int]:
        """Return the masters, each with a slot that it serves, so that a call to it finds its successor."""
        slots: dict[Address, int] = {}
        for first, _, shard in self.topology.spans():
            slots.setdefault(shard.master, first)
        return slots

    # ---------------------------------------------------------------------------------------------- the map

    def learn(self, error: AskError, node: Node) -> Node:
        """Take what a node says about a slot that it does not serve; return who does. Sync.

        `MOVED` changes the map at once, and has all of it asked for soon. `ASK` is about one call.
        """
        address = _named(error, node)
        if isinstance(error, MovedError):
            self.counts.moved += 1
            self.adopt(self.topology.moved(error.slot_id, address))
            self.refresh_soon(address)
            return self.fleet.node(address)
        self.counts.asked += 1
        other = self.fleet.node(address)
        other.kept_until = trio.current_time() + KEPT
        return other

    def adopt(self, topology: Topology) -> None:
        """Put another map in place: calls that wait for a node which is no master any more go elsewhere. Sync."""
        old, self.topology = self.topology, topology
        if topology is old or topology == old:
            return
        masters = topology.masters
        for address in old.masters:
            if address not in masters:
                self._demoted(address, old)
        self.changed.set()
        self.changed = trio.Event()

    def _demoted(self, address: Address, old: Topology) -> None:
        node = self.fleet.find(address)
        if node is not None and not node.is_ready:
            node.bounce()
        slot = next(first for first, _, shard in old.spans() if shard.master == address)
        shard = self.topology.shard_of(slot)
        if shard is not None:
            self.counts.failovers += 1
            if self._on_failover:
                emit(self._on_failover, RedisFailover(self._name, str(address), str(shard.master)))

    # ---------------------------------------------------------------------------------------- asking for it

    def _doubt(self) -> None:
        self.refresh_soon()

    def refresh_soon(self, told: Address | None = None) -> int:
        """Have the whole map asked for. Sync. Return a number for `wait_refreshed`.

        Args:
            told: A node that knows more than others; it is asked first.
        """
        self._told = told or self._told
        self._wanted.set()
        return self._asked + 1

    async def wait_refreshed(self, number: int) -> None:
        """Wait until the question that was asked for has been answered, or failed."""
        await trio.lowlevel.checkpoint()
        while self._answered < number:
            await self._news.wait()

    async def run(self) -> None:
        """Ask for the map whenever somebody wants it, and now and then."""
        while True:
            with trio.move_on_after(REFRESH_ANYWAY):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self._refresh()
            await trio.sleep(REFRESH_EVERY)
            if any(node.is_missed for node in self.fleet.nodes):
                self.refresh_soon()

    async def _refresh(self) -> None:
        self._asked += 1
        topology = await self._ask(self._informants(), {})
        if topology is not None:
            self.counts.refreshes += 1
            self.adopt(topology)
            self.fleet.keep(topology.nodes)
        self._answered = self._asked
        self._news.set()
        self._news = trio.Event()

    def _informants(self) -> Iterator[Node]:
        """Yield whom to ask, the best first; the seeds, at last, may have to be connected to."""
        told, self._told = self._told, None
        ready = [node for node in self.fleet.nodes if node.is_ready]
        turn = next(self._turns) % len(ready) if ready else 0
        yield from sorted([*ready[turn:], *ready[:turn]], key=lambda node: node.address != told)
        for seed in self._seeds:
            if not self.fleet.closed:
                yield self.fleet.node(seed, patience=0)

    async def _ask(self, nodes: Iterator[Node], causes: dict[Address, Exception]) -> Topology | None:
        """Ask node after node, each when the one before has failed or takes long; the first good answer counts."""
        found: list[Topology] = []
        with trio.move_on_after(self.settings.connect_timeout):
            async with trio.open_nursery() as nursery:

                async def ask(node: Node, done: trio.Event) -> None:
                    await trio.lowlevel.checkpoint()
                    try:
                        found.append(self._checked(await node.tell_topology(tls=self._tls)))
                        nursery.cancel_scope.cancel(reason="another node has told")
                    except FAILURES as error:
                        causes[node.address] = error
                    done.set()

                for node in nodes:
                    done = trio.Event()
                    nursery.start_soon(ask, node, done)
                    with trio.move_on_after(STAGGER):
                        await done.wait()
        return found[0] if found else None

    @staticmethod
    def _checked(topology: Topology) -> Topology:
        if not topology.shards:
            raise RedisClusterException("no node serves any slot yet")
        return topology

    async def begin(self, wait: float) -> None:
        """Learn the map for the first time, and connect to the masters.

        Args:
            wait: Seconds for which that may be tried; 0: one attempt.

        Raises:
            AuthenticationError: A node does not know the user, or the password is wrong.
            LinkError: No node told; names all that were asked, with the cause of each.
        """
        topology = await self._first(trio.current_time() + wait)
        self.adopt(topology)
        self.fleet.keep(topology.nodes)
        await self._meet_masters()

    async def _first(self, until: float) -> Topology:
        failures = 0
        while True:
            causes: dict[Address, Exception] = {}
            topology = await self._ask((self.fleet.node(seed, patience=0) for seed in self._seeds), causes)
            if topology is not None:
                return topology
            await self._pause(failures, until, causes)
            failures += 1

    async def _pause(self, failures: int, until: float, causes: dict[Address, Exception]) -> None:
        delay = self.settings.pause(failures)
        for error in causes.values():
            if isinstance(error, AuthenticationError):
                raise error
        if trio.current_time() + delay >= until:
            raise self._unreachable(causes)
        await trio.sleep(delay)

    def _unreachable(self, causes: dict[Address, Exception]) -> LinkError:
        timeout = f"no answer within {self.settings.connect_timeout:g} s"
        words = "; ".join(f"{seed}: {causes.get(seed, timeout)}" for seed in self._seeds)
        error = LinkError(f"no node tells of the cluster: {words}")
        error.__cause__ = next(iter(causes.values()), None)
        return error

    async def _meet_masters(self) -> None:
        async with trio.open_nursery() as nursery:
            for address in self.topology.masters:
                nursery.start_soon(self.fleet.node(address).meet)


def _named(error: AskError, node: Node) -> Address:
    """Return the address in a redirection; no host there is that of the node which has answered."""
    host = cast("Any", error).host
    return Address(node.address.host if host in ("", "?") else host, error.port)
