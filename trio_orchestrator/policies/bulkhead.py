"""A bulkhead: at most so many calls at once, and a bounded line before them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple, final

import trio

from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.argument import count
from trio_orchestrator.policies.slot import AsyncPlace, Line, PlaceNowait

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
@dataclass(frozen=True, slots=True)
class BulkheadStatistics:
    """A snapshot of a bulkhead."""

    name: str
    limit: int | float
    """How many calls may be in flight."""
    in_flight: int
    """How many are; more than `limit` for a while if that was lowered."""
    waiting: int
    """How many wait for a slot."""
    refused: int
    """How many were refused a slot, so far."""


@final
class Bulkhead(Policy):
    """Let at most `limit` calls be in flight at once; the others wait in line, first come, first served.

    It keeps one slow service from taking all there is: connections, memory, sockets. A slot is held for a call until
    its function has really ended, clean-up after a cancellation included, so the limit holds also when calls time out.
    What has just ended hands its slot over: nobody overtakes those who wait.

        async with bulkhead.slot():     # or: await bulkhead.call(fetch, url)
            await fetch(url)

    `bulkhead.tokens` is the `trio.CapacityLimiter` behind it, for whatever takes one: a queue, or a thread.

    Args:
        limit: How many; a whole number, at least 1, or `math.inf`.
        max_waiting: How many may wait for a slot; 0: none, `math.inf`: any number.
        max_wait: How long one may wait, in seconds; 0: not at all, `math.inf`: for ever.
        name: For errors and `repr`.

    Raises:
        TypeError: A number is none.
        ValueError: A number is out of its range, or NaN.
    """

    __slots__ = ("_began_with", "_line")

    def __init__(
        self, limit: float, *, max_waiting: float = math.inf, max_wait: float = math.inf, name: str = "bulkhead"
    ) -> None:
        self._line = Line(count("limit", limit, 1), max_waiting=max_waiting, max_wait=max_wait, name=name)
        self._began_with = self.limit

    def parameters(self) -> dict[str, object]:
        """Return what it was made with; the limit as it is now."""
        return {"limit": self.limit, **self._line.parameters()}

    def __repr__(self) -> str:
        line = self._line
        return f"<Bulkhead {line.name!r}: {line.in_flight} of {self.limit} in flight, {line.waiting} waiting>"

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return self._line.name

    @property
    def tokens(self) -> trio.CapacityLimiter:
        """The limiter whose tokens are the slots."""
        return self._line.tokens

    @property
    def limit(self) -> int | float:
        """How many calls may be in flight. Assign to change it, at any time; that is sync.

        A lower limit interrupts nothing: the calls in flight go on, and none starts until fewer than the new limit are.
        A higher one starts at once all who wait and now fit.
        """
        return self._line.tokens.total_tokens

    @limit.setter
    def limit(self, limit: float) -> None:
        self._line.tokens.total_tokens = count("limit", limit, 1)

    def slot(self) -> AsyncPlace:
        """Return a slot to be held for a block: `async with bulkhead.slot():`.

        Entering waits in line and is a checkpoint; if it is cancelled, nothing is held. Leaving does not block.

        Raises:
            LimitExceededError: On entering: `max_waiting` others wait already, or `max_wait` has passed.
        """
        return AsyncPlace(self._line)

    def slot_nowait(self) -> PlaceNowait:
        """Return a slot to be held for a block, if one is free at once: `with bulkhead.slot_nowait():`. Sync.

        Raises:
            trio.WouldBlock: On entering: none is free, or others wait for one.
        """
        return PlaceNowait(self._line)

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)` in a slot and return its result.

        Has the checkpoints of `fn`, and one of its own only if it waits or refuses. Cancelling it gives up the place in
        line, or cancels `fn`.

        Raises:
            LimitExceededError: `max_waiting` others wait already, or `max_wait` has passed.
        """
        token = object()
        if not self._line.take_nowait(token):
            await self._line.wait(token)
        try:
            return await fn(*args)
        finally:
            self._line.give(token)

    @property
    def is_idle(self) -> bool:
        """Whether it is as a new one: nothing is in flight, nobody waits, and the limit is the one it was made with."""
        return self._line.is_idle and self.limit == self._began_with

    def statistics(self) -> BulkheadStatistics:
        """Return a snapshot. Sync, and cheap."""
        line = self._line
        return BulkheadStatistics(line.name, self.limit, line.in_flight, line.waiting, line.refused)
