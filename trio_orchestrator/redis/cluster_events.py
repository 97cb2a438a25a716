"""Listening to a cluster: to any node for what all nodes tell each other, to its owner for what stays in a slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

import trio
from redis.exceptions import AskError

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.connector import Connector, Resolve
from trio_orchestrator.redis.event_link import EventLink
from trio_orchestrator.redis.router import REFRESH_EVERY, Router
from trio_orchestrator.redis.slot import slot_of
from trio_orchestrator.redis.topic import SHARD, Topic

MakeConnector: TypeAlias = Callable[[str, Resolve], Connector]
"""Makes a connector: its name, and how it is asked where to connect to."""


@final
class ClusterEvents:
    """Some event connections, each opened at the first need: one to any node, and one for each slot of a shard channel.

    One that is lost is made again to whichever node can be reached, or serves the slot, by then.

    Args:
        router: Knows the nodes.
        connect: Makes connectors.
    """

    __slots__ = ("_connect", "_links", "_router")

    def __init__(self, router: Router, connect: MakeConnector) -> None:
        self._router = router
        self._connect = connect
        self._links: dict[int | None, EventLink] = {}

    def route(self, topic: Topic) -> EventLink:
        """Return the event connection that carries a topic. Sync.

        Raises:
            trio.ClosedResourceError: The block of the client was left.
        """
        slot = slot_of(topic.name) if topic.kind == SHARD else None
        link = self._links.get(slot)
        if link is None or link.closed:
            link = self._links[slot] = self._opened(slot)
        return link

    def _opened(self, slot: int | None) -> EventLink:
        name = "events of the cluster" if slot is None else f"events of the cluster's slot {slot}"
        way = _Way(self._router, slot)
        link = EventLink(name, self._connect(name, way.find), self._router.settings, moved=way.moved)
        self._router.fleet.listen(link)
        return link


@final
class _Way:
    """Where one event connection leads to."""

    def __init__(self, router: Router, slot: int | None) -> None:
        self._router = router
        self._slot = slot
        self._found: Address | None = None
        self._told = False

    async def find(self) -> Address:
        """Return where to connect to; after the first time, not before the nodes have been asked anew."""
        await trio.lowlevel.checkpoint()
        if self._found is not None and not self._told:
            with trio.move_on_after(10 * REFRESH_EVERY):
                await self._router.wait_refreshed(self._router.refresh_soon())
        self._told = False
        self._found = self._router.any_ready if self._slot is None else self._router.topology.master_of(self._slot)
        return self._found

    def moved(self, error: Exception) -> None:
        """Hear that the slot is not served there. Sync."""
        if isinstance(error, AskError) and self._found is not None:
            self._router.learn(error, self._router.fleet.node(self._found))
            self._told = True
