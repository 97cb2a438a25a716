"""Going through all keys, fields or members, page by page, as iterators that may be left at any point."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeAlias, TypeVar, final

import trio

Item_co = TypeVar("Item_co", covariant=True)

Page: TypeAlias = Callable[[int], Awaitable[tuple[int, Iterable[Any]]]]
"""From a cursor to the next cursor, and the items between."""


@final
class Scan(AsyncIterator[Item_co]):
    """Everything that `SCAN`, `HSCAN`, `SSCAN` or `ZSCAN` finds: `async for key in redis.scan_iter("user:*")`.

    It asks for a page when the last one is used up, and holds nothing between: leave the loop by `break` as you like.
    As the server promises: what is there from the first page to the last is found, perhaps more than once; what comes
    or goes meanwhile may be found. Cancelling loses nothing: the same iterator goes on where it was.

    Args:
        page: Asks for one page. The cursor is 0 at first, and 0 again after the last.
    """

    __slots__ = ("_cursor", "_items", "_page")

    def __init__(self, page: Page) -> None:
        self._page = page
        self._cursor: int | None = 0
        self._items: deque[Item_co] = deque()

    def __aiter__(self) -> Scan[Item_co]:
        """Return itself."""
        return self

    async def __anext__(self) -> Item_co:
        """Return the next item. Always a checkpoint; only where a page begins it waits for the server."""
        if self._items or self._cursor is None:
            await trio.lowlevel.checkpoint()
        while not self._items and self._cursor is not None:
            cursor, items = await self._page(self._cursor)
            self._cursor = cursor or None
            self._items.extend(items)
        if self._items:
            return self._items.popleft()
        raise StopAsyncIteration
