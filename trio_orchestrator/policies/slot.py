"""A place in line: the bounded, first-come-first-served wait for a token of a `trio.CapacityLimiter`."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Final, Self, final

import trio

from trio_orchestrator.algorithms.argument import at_least, count
from trio_orchestrator.errors import LimitExceededError


@final
class Line:
    """Takes and gives tokens, and bounds how many wait for one, and how long.

    Every borrower is a fresh object, since one task may hold several tokens, and Trio lets two equal borrowers in on
    one. Who returns a token hands it to whoever waits first; nobody overtakes.
    """

    __slots__ = ("_inside", "_max_wait", "_max_waiting", "name", "refused", "tokens")

    def __init__(self, limit: float, *, max_waiting: float, max_wait: float, name: str) -> None:
        self._max_waiting = count("max_waiting", max_waiting, 0)
        self._max_wait = at_least("max_wait", max_wait, 0)
        self.name: Final = name
        self.tokens: Final = trio.CapacityLimiter(tokens_of(limit))
        self._inside = 0  # in `wait`, those who own their token already, but have not run since
        self.refused: int = 0
        """How many were not let in, or waited in vain."""

    def parameters(self) -> dict[str, object]:
        """Return what it was made with, but for the limit."""
        return {"max_waiting": self._max_waiting, "max_wait": self._max_wait, "name": self.name}

    @property
    def in_flight(self) -> int:
        """How many tokens are borrowed, through this line or otherwise."""
        return self.tokens.borrowed_tokens

    @property
    def waiting(self) -> int:
        """How many wait for a token: here, not where else `tokens` may be waited for."""
        return min(self._inside, self.tokens.statistics().tasks_waiting) if self._inside else 0

    @property
    def is_idle(self) -> bool:
        """Whether no token is borrowed, and nobody waits for one."""
        return not (self.waiting or self.in_flight)

    def take_nowait(self, borrower: object) -> bool:
        """Borrow a token if one is free and nobody waits for it. Sync."""
        try:
            self.tokens.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            return False
        return True

    async def take(self, borrower: object) -> None:
        """Borrow a token, after a wait if need be.

        A checkpoint, whether it waits or not. If it is cancelled, no token is held.

        Raises:
            LimitExceededError: As for `wait`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.take_nowait(borrower):
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await self.wait(borrower)

    async def wait(self, borrower: object) -> None:
        """Wait for a token, where `take_nowait` has just got none.

        A checkpoint, also if it raises. If it is cancelled, the place in line is given up.

        Raises:
            LimitExceededError: `max_waiting` others wait already, or `max_wait` has passed.
        """
        if not self._max_wait or (self._inside >= self._max_waiting and self.waiting >= self._max_waiting):
            waiting = self.waiting
            await trio.lowlevel.checkpoint()
            raise self._refusal(f"{waiting} waiting")
        self._inside += 1
        try:
            with trio.move_on_after(self._max_wait):
                await self.tokens.acquire_on_behalf_of(borrower)
                return
        finally:
            self._inside -= 1
        raise self._refusal(f"none free within {self._max_wait:g} s")

    def _refusal(self, why: str) -> LimitExceededError:
        self.refused += 1
        return LimitExceededError(f"{self.name}: all {self.tokens.total_tokens} slots taken, {why}")

    def give(self, borrower: object) -> None:
        """Return a token; it goes to whoever waits first. Sync."""
        self.tokens.release_on_behalf_of(borrower)


def tokens_of(limit: float) -> int | float:
    """Return what a `trio.CapacityLimiter` takes for a limit: it is rounded down, and not below 1."""
    return limit if limit == math.inf else max(1, math.floor(limit))


class Place:
    """One place, for one block. Entered once."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line: Line = line

    def _begin(self) -> None:
        """Called when the place is held, before the block."""

    def _end(self, error: BaseException | None) -> None:
        """Called when the block has ended, before the place is given back."""


class AsyncPlace(Place):
    """Entering waits for the place, and is a checkpoint; leaving does not block."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        await self._line.take(self)
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        finally:
            self._line.give(self)


class PlaceNowait(Place):
    """Entering raises `trio.WouldBlock` unless the place is free at once. Neither half blocks."""

    __slots__ = ()

    def __enter__(self) -> Self:
        self._line.tokens.acquire_on_behalf_of_nowait(self)
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        finally:
            self._line.give(self)
