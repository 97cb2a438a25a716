"""The nodes of a cluster that are spoken with: each from its first need until it leaves the cluster."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias, final

import trio
from redis.exceptions import RedisError, ResponseError

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.connector import Resolve
from trio_orchestrator.redis.error import LinkError
from trio_orchestrator.redis.event_link import EventLink
from trio_orchestrator.redis.link import Link
from trio_orchestrator.redis.server import Server
from trio_orchestrator.redis.topology import Topology, parse_shards, parse_slots
from trio_orchestrator.redis.wire import pack

MakeServer: TypeAlias = Callable[[Address, Resolve, bool], Server]
"""Makes the server of a node: where it is, how that is asked, whether it is a replica that is read from."""

KEPT: Final = 5.0
"""Seconds that a node without slots is kept after it was asked for one: it is being given its first."""

_SHARDS: Final = pack(("CLUSTER", "SHARDS"))
_SLOTS: Final = pack(("CLUSTER", "SLOTS"))


@final
class Node:
    """One node: its server, and what becomes of its calls when it cannot be reached or is not needed any more.

    Args:
        address: Where it is.
        reads: Whether it is read from as a replica. One that is spoken with in both ways is two of these.
        make: Makes its server.
        troubled: Called when it has to be connected to another time.
    """

    __slots__ = (
        "_apart",
        "_attempts",
        "_meeting",
        "_troubled",
        "address",
        "kept_until",
        "link",
        "reads",
        "server",
        "stopped",
    )

    def __init__(self, address: Address, reads: bool, make: MakeServer, troubled: Callable[[], None]) -> None:
        self._apart: dict[Call, trio.CancelScope] = {}
        self._attempts = 0
        self._meeting = trio.CancelScope()
        self._troubled = troubled
        self.address: Address = address
        self.reads: bool = reads
        self.server: Server = make(address, self._where, reads)
        self.link: Link = self.server.link
        self.stopped: bool = False
        """Whether it was left on purpose."""
        self.kept_until: float = 0.0
        """Until when it is kept even if it has no slots."""

    def __repr__(self) -> str:
        return f"<Node {self.address}{' for reads' if self.reads else ''}>"

    @property
    def is_ready(self) -> bool:
        """Whether it is connected and not silent."""
        connection = self.link.connection
        return connection is not None and not connection.doubted

    @property
    def is_lost(self) -> bool:
        """Whether it was tried to connect to it, and it is not connected, or silent."""
        return self._attempts > 0 and not self.is_ready

    @property
    def is_missed(self) -> bool:
        """Whether somebody waits for it while it cannot be reached."""
        return not self.is_ready and (len(self.link.outbox) > 0 or self.link.outbox.waiting > 0)

    async def _where(self) -> Address:
        """Say where it is, before each attempt to connect; all but the first mean that something is wrong."""
        await trio.lowlevel.checkpoint()
        self._attempts += 1
        if self._attempts > 1 and not self.is_ready:
            self._meeting.cancel(reason="the first attempt to connect failed")
            if self.reads:
                self.bounce()
            self._troubled()
        return self.address

    async def meet(self) -> None:
        """Wait until it is ready, or the first attempt to connect has failed. For one task, once."""
        await trio.lowlevel.checkpoint()
        with self._meeting, suppress(RedisError):
            await self.link.wait_ready()

    def bounce(self) -> None:
        """End all calls that were not sent, as not sent, so that they are sent elsewhere. Sync."""
        for call in self.link.outbox.clear():
            call.settle(self._unreachable())
        for call, scope in self._apart.items():
            if call.conversation is None:
                scope.cancel(reason="another node serves the slot")

    def _unreachable(self) -> LinkError:
        return LinkError(f"the node at {self.address} cannot be reached: the call was not sent")

    async def call_apart(self, call: Call, *, blocks: float | None, stateful: bool) -> Any:
        """Call on a connection of its own, as `Server.call_apart`; `bounce` ends that while it waits for one."""
        with trio.CancelScope() as scope:
            self._apart[call] = scope
            try:
                return await self.server.call_apart(call, blocks=blocks, stateful=stateful)
            finally:
                del self._apart[call]
        raise self._unreachable()

    async def tell_topology(self, *, tls: bool) -> Topology:
        """Ask it who serves which slot.

        Raises:
            RedisError: It cannot be reached, or does not answer.
            RedisClusterException: Its answer cannot be read.
        """
        await self.link.wait_ready()
        try:
            return parse_shards(await self._ask(_SHARDS), self.address, tls=tls)
        except ResponseError:  # it is too old for that, or its user may not
            return parse_slots(await self._ask(_SLOTS), self.address)

    async def _ask(self, question: bytes) -> object:
        call = Call(question)
        call.raw = call.resend = True
        return await self.link.call(call)

    def stop(self) -> None:
        """End everything that goes on with it at once. Sync."""
        self.stopped = True
        self.server.stop()


@final
class Fleet:
    """All nodes that are spoken with, in a scope of their own, which nothing outside cancels.

    Args:
        make: Makes the server of a node.
        troubled: Called when a node has to be connected to another time.
        close_within: Seconds that a node which is left has to answer what was sent.
    """

    def __init__(self, make: MakeServer, troubled: Callable[[], None], close_within: float) -> None:
        self._make = make
        self._troubled = troubled
        self._close_within = close_within
        self._nodes: dict[tuple[Address, bool], Node] = {}
        self._leaving: set[Node] = set()
        self._scope = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self.closed: bool = False
        """Whether the block was left."""

    @property
    def nodes(self) -> list[Node]:
        """Those that are spoken with now, in the order in which they were first needed."""
        return list(self._nodes.values())

    async def run(
        self, beside: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep everything going, and `beside` as well, until `stop`. Cancelling from outside does not end it."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await beside()

    def node(self, address: Address, *, reads: bool = False, patience: float = math.inf) -> Node:
        """Return a node; it is connected to from now on if it was not. Sync.

        Args:
            address: Where it is.
            reads: Whether a replica is to be read from.
            patience: Seconds for which its first connection may be tried; 0: one attempt.

        Raises:
            trio.ClosedResourceError: The block was left.
        """
        node = self._nodes.get((address, reads))
        return node if node is not None else self._opened(address, reads, patience)

    def _opened(self, address: Address, reads: bool, patience: float) -> Node:
        if self.closed or self._nursery is None:
            raise trio.ClosedResourceError("the block of the cluster's client was left")
        node = self._nodes[address, reads] = Node(address, reads, self._make, self._troubled)
        self._nursery.start_soon(self._run, node, patience, name=node.server.name)
        return node

    def listen(self, link: EventLink) -> None:
        """Run an event connection, until it is closed or the block is left. Sync.

        Raises:
            trio.ClosedResourceError: The block was left.
        """
        if self.closed or self._nursery is None:
            raise trio.ClosedResourceError("the block of the cluster's client was left")
        self._nursery.start_soon(link.run, name=link.name)

    async def _run(self, node: Node, patience: float) -> None:
        try:
            await node.server.run(patience)
        finally:
            self._forget(node)

    def _forget(self, node: Node) -> None:
        key = node.address, node.reads
        if self._nodes.get(key) is node:
            del self._nodes[key]

    def find(self, address: Address) -> Node | None:
        """Return a node if it is spoken with already. Sync."""
        return self._nodes.get((address, False))

    def keep(self, addresses: Iterable[Address]) -> None:
        """Leave all nodes but these: each has a moment to answer what was sent. Sync."""
        kept, now = frozenset(addresses), trio.current_time()
        for node in self.nodes:
            if node.address not in kept and node.kept_until <= now:
                self._leave(node)

    def _leave(self, node: Node) -> None:
        self._forget(node)
        node.stopped = True
        self._leaving.add(node)
        if not node.is_ready:
            node.bounce()
        if self._nursery is not None:
            self._nursery.start_soon(self._part, node)

    async def _part(self, node: Node) -> None:
        await node.server.flush(self._close_within)
        node.stop()
        self._leaving.discard(node)

    async def flush(self) -> None:
        """Let nothing more in; wait a while until what was posted has been answered. Cannot be cancelled."""
        self.closed = True
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for node in self.nodes:
                    nursery.start_soon(partial(node.server.flush, self._close_within))

    def stop(self) -> None:
        """End everything at once. Sync."""
        self.closed = True
        for node in [*self._nodes.values(), *self._leaving]:
            node.stop()
        self._scope.cancel(reason="the block of the cluster's client was left")
