"""What an `Instrument` is told by links to Redis. Apart from `event`, so that a queue need not import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class RedisConnected:
    """A connection was made; nothing has been said on it yet."""

    link: str
    """The name of the link: what it is for, and the server that it was opened for."""
    address: str


@final
@dataclass(frozen=True, slots=True)
class RedisReady:
    """The server answers: calls go out from now on."""

    link: str
    address: str
    after: float
    """Seconds since the link was opened, or since it was lost or doubted."""
    attempts: int
    """How many connections were tried, this one included."""


@final
@dataclass(frozen=True, slots=True)
class RedisLost:
    """A connection was lost, or given up for a better one."""

    link: str
    address: str
    cause: BaseException
    in_flight: int
    """How many calls may have run without anybody knowing."""
    unsent: int
    """How many calls wait for the next connection, since they certainly have not run, or may run again."""


@final
@dataclass(frozen=True, slots=True)
class RedisReconnecting:
    """An attempt to connect failed; the next is made after a pause."""

    link: str
    address: str
    cause: BaseException
    delay: float
    """The pause, in seconds."""
    attempt: int
    """Which attempt it was that failed, from 1."""


@final
@dataclass(frozen=True, slots=True)
class RedisFailover:
    """A link speaks with another server than before."""

    link: str
    old: str
    new: str
