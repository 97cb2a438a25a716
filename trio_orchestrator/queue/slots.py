"""Slots are the tokens of a `trio.CapacityLimiter`, the queue's own or a shared one."""

from __future__ import annotations

import math
from typing import final

import trio


@final
class Slots:
    """Takes and gives tokens; every borrower is a fresh object, since Trio lets two equal ones in on one token."""

    __slots__ = ("limiter", "private")

    def __init__(self, limiter: trio.CapacityLimiter | None, concurrency: float) -> None:
        self.private: bool = limiter is None
        self.limiter: trio.CapacityLimiter = trio.CapacityLimiter(concurrency) if limiter is None else limiter

    @property
    def limit(self) -> int | float:
        """How many tokens there are, borrowed or not."""
        return self.limiter.total_tokens

    @property
    def in_debt(self) -> bool:
        """Whether more are borrowed than there are: nothing may start until that is worked off."""
        return self.limiter.borrowed_tokens > self.limiter.total_tokens

    def take(self) -> object | None:
        """Borrow a token, or return None if none is free, or others wait for one."""
        token = object()
        try:
            self.limiter.acquire_on_behalf_of_nowait(token)
        except trio.WouldBlock:
            return None
        return token

    def pass_on(self, token: object) -> bool:
        """Return a token and borrow it again; False if it went to somebody who waits for one."""
        self.limiter.release_on_behalf_of(token)
        try:
            self.limiter.acquire_on_behalf_of_nowait(token)
        except trio.WouldBlock:
            return False
        return True

    def give(self, token: object) -> None:
        """Return a token; the limiter hands it to whoever waits first."""
        self.limiter.release_on_behalf_of(token)


def check_concurrency(concurrency: float, least: int) -> None:
    """Refuse what is no number of slots.

    Raises:
        TypeError: It is neither an int nor `math.inf`.
        ValueError: It is less than `least`.
    """
    if isinstance(concurrency, bool) or not (isinstance(concurrency, int) or concurrency == math.inf):
        raise TypeError(f"concurrency must be an int or math.inf, got {concurrency!r}")
    if concurrency < least:
        raise ValueError(f"concurrency must be >= {least}, got {concurrency}")
