"""Going through the keys of a whole cluster: one master after another, each with a cursor of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias, final

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.router import Router
from trio_orchestrator.redis.slot import SLOTS, slot_of

NodePage: TypeAlias = Callable[[Address, int], Awaitable[tuple[int, Iterable[Any]]]]
"""From a node and a cursor to the next cursor, and the keys between."""


@final
class Walk:
    """What is left to do until every slot was gone through at a node that served it all the while.

    A cursor is worth nothing at another node: when a master has lost a slot before it was gone through, that slot is
    gone through again where it is now; keys of slots that are done already are left out.

    Args:
        router: Knows who serves which slot.
        page: Asks a node for one page.
    """

    __slots__ = ("_cursor", "_left", "_node", "_page", "_router", "_slots", "_whole")

    def __init__(self, router: Router, page: NodePage) -> None:
        self._router = router
        self._page = page
        self._left = set(range(SLOTS))
        self._node: Address | None = None
        self._slots: set[int] = set()
        self._whole = True
        self._cursor = 0

    async def page(self, _cursor: int) -> tuple[int, list[Any]]:
        """Return 1, or 0 after the last page, and the keys of a page. Cancelled, it goes on where it was.

        Raises:
            SlotNotCoveredError: Nobody is known to serve a slot that is left.
        """
        node = self._node if self._node is not None and self._still_serves() else self._next()
        cursor, keys = await self._page(node, self._cursor)
        self._cursor = cursor
        found = [key for key in keys if self._whole or slot_of(key) in self._slots]
        if cursor == 0:
            self._left -= {slot for slot in self._slots if self._serves(slot)}
            self._node = None
        return int(bool(self._left)), found

    def _serves(self, slot: int) -> bool:
        shard = self._router.topology.shard_of(slot)
        return shard is not None and shard.master == self._node

    def _still_serves(self) -> bool:
        return any(map(self._serves, self._slots))

    def _next(self) -> Address:
        topology = self._router.topology
        node = self._node = topology.master_of(min(self._left))
        served = {slot for slot in range(SLOTS) if self._serves(slot)}
        self._slots = served & self._left
        self._whole = self._slots == served
        self._cursor = 0
        return node
