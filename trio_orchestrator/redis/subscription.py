"""Who wants to hear what, and what the server has confirmed of it. Neither a connection nor a clock.

Somebody's place at a topic is a seat. It is there as long as its owner wants it, which is until `vacate`, or while a
task waits for the confirmation; a topic is wanted as long as it has a seat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import trio

from trio_orchestrator.redis.topic import Topic

BATCH: Final = 500
"""So many topics are asked for in one command, at most."""


@final
@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which messages may have been missed, because the connection was lost: they are not kept by the server.

    When it is told, everything is subscribed to again. Messages that came since then may have been told before it.
    """

    since: float
    """When the lost connection last gave a sign of life, in seconds of Trio's clock."""
    until: float
    """When the server had confirmed the last of the subscriptions again."""


class Sink(ABC):
    """What pushes are told to, in the step in which they come in. Nothing in it may wait, block or raise."""

    @abstractmethod
    def receive(self, push: list[Any], /) -> None:
        """Take a push message as it came, undecoded: its kind, then what belongs to that."""

    @abstractmethod
    def miss(self, gap: Gap, /) -> None:
        """Be told that messages may have been missed, of any of the topics that were subscribed to before the gap."""

    @abstractmethod
    def end(self, topic: Topic, error: Exception, /) -> None:
        """Be told that the server has ended a subscription, or did not let it be made again. It is not tried again."""


@final
class Audience:
    """Those who want to hear one topic."""

    __slots__ = ("changed", "live", "refusal", "seats", "sinks", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic: Topic = topic
        self.seats: dict[Sink, Seat] = {}
        self.sinks: tuple[Sink, ...] = ()
        """Whom to tell, replaced at each change."""
        self.live: bool = False
        """Whether the server has confirmed it on the present connection."""
        self.refusal: Exception | None = None
        """Why nobody is an audience any more."""
        self.changed: trio.lowlevel.ParkingLot = trio.lowlevel.ParkingLot()
        """Where to wait for one of these to change."""

    def open(self) -> None:
        """Note that the server has confirmed it."""
        self.live = True
        self.changed.unpark_all()


@final
class Seat:
    """One sink's place at one topic."""

    __slots__ = ("audience", "gone", "kept", "sink", "waiting")

    def __init__(self, audience: Audience, sink: Sink) -> None:
        self.audience: Audience = audience
        self.sink: Sink = sink
        self.waiting: int = 0
        """How many tasks wait for its confirmation."""
        self.kept: bool = False
        """Whether one of them has seen it, so that it stays when none waits."""
        self.gone: bool = False


@final
class Subscriptions:
    """What is wanted, what is confirmed, and what is to be asked because these differ."""

    __slots__ = ("_alone", "_audiences", "_changed", "_confirmed")

    def __init__(self) -> None:
        self._audiences: dict[Topic, Audience] = {}
        self._confirmed: set[Topic] = set()
        self._changed: dict[Topic, None] = {}
        self._alone: set[Topic] = set()

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._audiences)

    def __len__(self) -> int:
        return len(self._audiences)

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._audiences

    # --------------------------------------------------------------------------------------- what is wanted

    def audience(self, topic: Topic) -> Audience | None:
        """Return who wants to hear a topic."""
        return self._audiences.get(topic)

    def seat(self, topic: Topic, sink: Sink) -> Seat | None:
        """Return the seat of a sink at a topic."""
        audience = self._audiences.get(topic)
        return None if audience is None else audience.seats.get(sink)

    def sinks(self) -> set[Sink]:
        """Return all that have been told that they are subscribed to something."""
        audiences = self._audiences.values()
        return {seat.sink for audience in audiences for seat in audience.seats.values() if seat.kept}

    def join(self, topic: Topic, sink: Sink) -> Seat:
        """Want a topic, for a task that waits until it is confirmed; it must `rise` whatever comes."""
        audience = self._audiences.get(topic)
        if audience is None:
            audience = self._audiences[topic] = Audience(topic)
            self._changed[topic] = None
        seat = audience.seats.get(sink)
        if seat is None:
            seat = audience.seats[sink] = Seat(audience, sink)
            audience.sinks = tuple(audience.seats)
        seat.waiting += 1
        return seat

    def rise(self, seat: Seat) -> None:
        """Note that a task waits no more: the seat is left unless it is kept, or another task waits."""
        seat.waiting -= 1
        if not seat.waiting and not seat.kept:
            self.vacate(seat)

    def vacate(self, seat: Seat) -> None:
        """Leave a seat, whoever waits for its confirmation."""
        if seat.gone:
            return
        audience, seat.gone = seat.audience, True
        del audience.seats[seat.sink]
        audience.sinks = tuple(audience.seats)
        audience.changed.unpark_all()
        if not audience.seats:
            del self._audiences[audience.topic]
            self._changed[audience.topic] = None

    # ------------------------------------------------------------------------------------ what is confirmed

    def confirm(self, topic: Topic, *, subscribed: bool) -> None:
        """Note what the server says of a topic."""
        if not subscribed:
            self._confirmed.discard(topic)
            return
        self._confirmed.add(topic)
        audience = self._audiences.get(topic)
        if audience is not None:
            audience.open()

    def refuse(self, topic: Topic, error: Exception) -> list[Sink]:
        """End a topic; return the sinks that have been told that they were subscribed to it."""
        audience = self._audiences.pop(topic, None)
        if audience is None:
            return []
        audience.refusal = error
        for seat in audience.seats.values():
            seat.gone = True
        audience.changed.unpark_all()
        return [seat.sink for seat in audience.seats.values() if seat.kept]

    def separate(self, topics: Iterable[Topic]) -> None:
        """Have topics that were refused together asked for one by one: then it shows which was meant."""
        self._alone.update(topics)
        self._changed.update(dict.fromkeys(topics))

    def reset(self) -> None:
        """Note that nothing is confirmed, on a new connection."""
        self._confirmed.clear()
        self._alone.clear()
        self._changed = dict.fromkeys(self._audiences)
        for audience in self._audiences.values():
            audience.live = False

    def orders(self) -> list[tuple[bytes, list[Topic]]]:
        """Return what to ask for now, as verbs with their topics. It counts as asked for."""
        wanted: dict[bytes, list[Topic]] = {}
        for topic in self._changed:
            audience, confirmed = self._audiences.get(topic), topic in self._confirmed
            if (audience is not None) != confirmed:
                wanted.setdefault(topic.verb(wanted=audience is not None), []).append(topic)
            elif audience is not None:
                audience.open()  # it was left and wanted again before the server was asked
        orders = [(verb, batch) for verb, topics in wanted.items() for batch in self._batches(topics)]
        self._changed.clear()
        self._alone.clear()
        return orders

    def _batches(self, topics: list[Topic]) -> Iterator[list[Topic]]:
        together = [topic for topic in topics if topic not in self._alone]
        for start in range(0, len(together), BATCH):
            yield together[start : start + BATCH]
        for topic in topics:
            if topic in self._alone:
                yield [topic]
