"""What a link counts, and what it shows of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from trio_orchestrator.redis.connection import Connection
from trio_orchestrator.redis.outbox import Outbox


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """The figures of one link. Calls count once, however many replies they want; so does a pipeline."""

    name: str
    address: str
    """Where it leads now; empty before the first connection."""
    connected: bool
    doubted: bool
    """Whether its server is silent, so that a second connection is tried."""
    calls: int
    """How many calls were made, posts included."""
    in_flight: int
    """How many were sent and wait for their reply, those that were given up included."""
    queued: int
    """How many wait to be sent."""
    waiting: int
    """How many wait in line for a place in the window."""
    timed_out: int
    connections: int
    """How many were ready to be used, the first included."""
    lost: int
    sent_bytes: int
    received_bytes: int


@final
@dataclass(slots=True)
class Counts:
    """What a link has counted. The bytes are those of the connections that are lost."""

    calls: int = 0
    timed_out: int = 0
    connections: int = 0
    lost: int = 0
    sent: int = 0
    received: int = 0

    def lose(self, connection: Connection) -> None:
        """Count a lost connection."""
        self.lost += 1
        self.sent += connection.conversation.taken
        self.received += connection.conversation.heard

    def statistics(self, name: str, connection: Connection | None, outbox: Outbox) -> LinkStatistics:
        """Return the figures of a link that has this connection now."""
        conversation = None if connection is None else connection.conversation
        return LinkStatistics(
            name=name,
            address="" if connection is None else str(connection.address),
            connected=connection is not None,
            doubted=connection is not None and connection.doubted,
            calls=self.calls,
            in_flight=0 if conversation is None else len(conversation.row),
            queued=len(outbox),
            waiting=outbox.waiting,
            timed_out=self.timed_out,
            connections=self.connections,
            lost=self.lost,
            sent_bytes=self.sent + (0 if conversation is None else conversation.taken),
            received_bytes=self.received + (0 if conversation is None else conversation.heard),
        )
