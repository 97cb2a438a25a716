"""The typed face of trio-util's `AsyncValue`: a value that tasks can wait for.

trio-util carries no types, so nothing of it is public here: it stays a private attribute behind `Value`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

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
