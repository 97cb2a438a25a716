"""The typed face of trio-util's `AsyncValue`: a value that tasks can wait for.

trio-util carries no types, so nothing of it is public here: it stays a private attribute behind `Value`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

from trio.lowlevel import ParkingLot, cancel_shielded_checkpoint, checkpoint_if_cancelled
from trio_util import AsyncValue

T = TypeVar("T")


@final
class Value(Generic[T]):
    """A variable whose changes can be waited for by any number of tasks.

    Setting it is sync and wakes the waiters whose predicate the new value meets. Waiting is level-triggered: a
    condition that already holds returns at once (after a checkpoint), and the value that met it is returned.
    """

    __slots__ = ("_source",)

    def __init__(self, value: T) -> None:
        self._source: AsyncValue[T] = AsyncValue(value)

    def __repr__(self) -> str:
        return f"Value({self.value!r})"

    @property
    def value(self) -> T:
        """The present value. Assigning evaluates the waiters' predicates: O(waiters)."""
        return self._source.value

    @value.setter
    def value(self, value: T) -> None:
        self._source.value = value

    async def wait_value(self, predicate: Callable[[T], bool], *, held_for: float = 0) -> T:
        """Wait until `predicate(value)` holds, for at least `held_for` seconds, and return that value.

        Cancelling the wait changes nothing. The predicate runs inside the setter, so it must not raise.
        """
        return await self._source.wait_value(predicate, held_for=held_for)

    async def wait_transition(self) -> tuple[T, T]:
        """Wait for the next change and return `(new, old)`. Cancelling the wait changes nothing."""
        return await self._source.wait_transition()


@final
class _Link(Generic[T]):
    """One of the values that were told: whoever iterates holds on to the last one seen."""

    __slots__ = ("next", "value")

    def __init__(self, value: T | None) -> None:
        self.value = value
        self.next: _Link[T] | None = None


@final
class News(Generic[T]):
    """Values that are told one after another to whoever iterates; nothing is kept for nobody."""

    __slots__ = ("_last", "_moved")

    def __init__(self) -> None:
        self._last: _Link[T] = _Link(None)
        self._moved = ParkingLot()

    def tell(self, value: T) -> None:
        """Tell the next value. Sync."""
        self._last.next = link = _Link(value)
        self._last = link
        self._moved.unpark_all()


@final
class Changes(Generic[T]):
    """What is told from now on, in order: `async for value in changes`. Nothing is lost, however slow the loop is.

    What was not yet taken is kept in memory for as long as this iterator lives. It has no end.
    """

    __slots__ = ("_news", "_seen")

    def __init__(self, news: News[T]) -> None:
        self._news = news
        self._seen = news._last

    def __aiter__(self) -> Changes[T]:
        return self

    async def __anext__(self) -> T:
        """Wait for the next value and return it. Always a checkpoint. Cancelled, it loses none."""
        await checkpoint_if_cancelled()
        if self._seen.next is not None:
            await cancel_shielded_checkpoint()
        while self._seen.next is None:  # or another task has taken it
            await self._news._moved.park()
        link = self._seen.next
        assert link.value is not None
        self._seen = link
        return link.value
