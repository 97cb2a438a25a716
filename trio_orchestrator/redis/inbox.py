"""What has come in for one consumer and was not taken yet: bounded, with a choice of what happens beyond that."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final, Literal, TypeAlias, final

import trio
from redis.exceptions import PubSubError

from trio_orchestrator.redis.subscription import Gap

Overflow: TypeAlias = Literal["raise", "drop_oldest", "drop_newest"]
OVERFLOWS: Final[tuple[Overflow, ...]] = ("raise", "drop_oldest", "drop_newest")


@final
class SlowConsumerError(PubSubError):
    """Messages were dropped where this is raised, since the buffer was full. The subscription stays: one may go on."""

    def __init__(self, dropped: int = 1) -> None:
        super().__init__(dropped)  # pyright: ignore[reportUnknownMemberType]
        self.dropped: int = dropped
        """How many."""

    def __str__(self) -> str:
        return (
            f"{self.dropped} messages were dropped, since the buffer was full: take them faster, or choose `overflow`"
        )


@final
class Inbox:
    """Messages, and notices between them where they belong. Its bound is one of messages.

    Args:
        buffer: So many messages are kept.
        overflow: What happens to those beyond: "raise" keeps the old ones and raises `SlowConsumerError` where the new
            ones are missing.
    """

    __slots__ = ("_buffer", "_items", "_lot", "_overflow", "closed", "dropped", "messages")

    def __init__(self, buffer: float, overflow: Overflow) -> None:
        if isinstance(buffer, bool) or not isinstance(buffer, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"buffer must be a whole number or math.inf, got {buffer!r}")
        if not buffer >= 1 or (buffer != math.inf and buffer != buffer // 1):
            raise ValueError(f"buffer must be a whole number >= 1 or math.inf, got {buffer!r}")
        if overflow not in OVERFLOWS:
            raise ValueError(f"overflow must be one of {', '.join(OVERFLOWS)}, got {overflow!r}")
        self._buffer = buffer
        self._overflow = overflow
        self._items: deque[list[Any] | Gap | Exception] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self.closed: bool = True
        self.messages: int = 0
        """How many messages wait."""
        self.dropped: int = 0
        """How many were dropped so far."""

    def put(self, message: list[Any]) -> None:
        """Add a message, or see to it that there is one too many."""
        if self.messages >= self._buffer:
            self.dropped += 1
            if self._overflow == "raise":
                self._mark()
            if self._overflow != "drop_oldest":
                return
            self._drop_oldest()
        self.messages += 1
        self._add(message)

    def notice(self, item: Gap | Exception) -> None:
        """Add what is no message and has no bound: a gap, joined with one before it, or what is to be raised."""
        last = self._items[-1] if self._items else None
        if isinstance(item, Gap) and isinstance(last, Gap):
            self._items[-1] = Gap(last.since, item.until)
        else:
            self._add(item)

    def _add(self, item: list[Any] | Gap | Exception) -> None:
        self._items.append(item)
        self._lot.unpark()

    def _mark(self) -> None:
        last = self._items[-1]
        if isinstance(last, SlowConsumerError):
            last.dropped += 1
        else:
            self._add(SlowConsumerError())

    def _drop_oldest(self) -> None:
        for index, item in enumerate(self._items):
            if isinstance(item, list):
                del self._items[index]
                self.messages -= 1
                return

    async def get(self) -> list[Any] | Gap:
        """Wait for something and take it. Cancelled, it takes nothing.

        Raises:
            SlowConsumerError: Messages are missing here.
            trio.ClosedResourceError: It was closed, or was never opened.
            RedisError: What else was noticed.
        """
        await trio.lowlevel.checkpoint()
        self.check_open()
        while not self._items:
            await self._lot.park()
            self.check_open()
        return self._take()

    async def get_within(self, timeout: float) -> list[Any] | Gap | None:
        """Do the same, but return None if nothing comes within so many seconds."""
        await trio.lowlevel.checkpoint()
        self.check_open()
        with trio.move_on_after(timeout):
            while not self._items:
                await self._lot.park()
                self.check_open()
        return self._take() if self._items else None

    def _take(self) -> list[Any] | Gap:
        item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        if isinstance(item, list):
            self.messages -= 1
        return item

    def open(self) -> None:
        """Begin to take things in."""
        self.closed = False

    def close(self) -> None:
        """Throw away what is left; whoever waits is told. Sync."""
        self.closed = True
        self._items.clear()
        self.messages = 0
        self._lot.unpark_all()

    def check_open(self) -> None:
        """Raise unless it is open."""
        if self.closed:
            raise trio.ClosedResourceError(
                "a pubsub can only be used inside its block: `async with redis.pubsub() as sub`"
            )
