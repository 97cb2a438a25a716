"""Publish and subscribe, from the subscriber's side: messages, one after another, out of a bounded buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, AnyStr, Generic, Self, TypeAlias, TypeVar, cast, final

import trio

from trio_orchestrator.redis.event_link import EventLink
from trio_orchestrator.redis.inbox import Inbox, Overflow
from trio_orchestrator.redis.subscription import Gap, Sink
from trio_orchestrator.redis.topic import CHANNEL, PATTERN, SHARD, Topic

T = TypeVar("T")
Route: TypeAlias = Callable[[Topic], EventLink]
"""Which event connection carries a topic: on a cluster, that of the node that owns the slot of a shard channel."""


@final
@dataclass(frozen=True, slots=True)
class Message:
    """What somebody published."""

    channel: Any
    """Where: str if the client decodes, else bytes."""
    data: Any
    """What: str if the client decodes, else bytes."""
    pattern: Any = None
    """The pattern that it was heard by, if it was one. What matches a channel and a pattern is heard twice."""
    kind: str = "message"
    """`message`, `pmessage` (by a pattern) or `smessage` (on a shard channel)."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as redis-py has it."""
        return {"type": self.kind, "pattern": self.pattern, "channel": self.channel, "data": self.data}


@final
@dataclass(frozen=True, slots=True)
class PubSubStatistics:
    """The figures of one pubsub."""

    topics: int
    """To how many channels, patterns and shard channels it is subscribed, or is being."""
    received: int
    """How many messages came in, the dropped ones included."""
    dropped: int
    """How many were dropped, since the buffer was full."""
    buffered: int
    """How many wait to be taken."""
    gaps: int
    """How many times the connection was lost and everything subscribed to again: messages may be missing."""


@final
class PubSub(Generic[T]):
    """Subscriptions that live as long as a block: `async with redis.pubsub() as sub`. Made by `pubsub` of a client.

    `await sub.subscribe("news")`, then `async for message in sub`. It takes in what comes whether or not anybody
    iterates, up to its buffer. After a lost connection it subscribes again by itself; what was published meanwhile is
    not kept by the server, and that is told as a `Gap` or counted in `statistics()`. Several tasks may iterate: each
    message goes to one of them. Leaving the block ends the subscriptions, takes a few steps and cannot be cancelled.

    Args:
        route: Which event connection carries a topic.
        encoder: redis-py's, of the client.
        owned: Whether the event connections are its own, to be closed with it.
        buffer: So many messages are kept until they are taken; beyond that `overflow` says what happens.
        overflow: "raise": the newest are dropped, and `SlowConsumerError` is raised where they are missing; or
            "drop_oldest", "drop_newest".
        gaps: Whether gaps are told between the messages.
    """

    def __init__(
        self, route: Route, encoder: Any, *, owned: bool, buffer: float, overflow: Overflow, gaps: bool
    ) -> None:
        """Made by `redis.pubsub()`."""
        self._route = route
        self._encoder = encoder
        self._owned = owned
        self._inbox = Inbox(buffer, overflow)
        self._held: dict[Topic, EventLink] = {}
        self._links: dict[EventLink, None] = {}
        self._ear = _Ear(self._inbox, self._held, tells_gaps=gaps)

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        self._inbox.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._inbox.close()
        self._leave(tuple(self._held))
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
            for link in self._close_links():
                await link.wait_closed()

    def _close_links(self) -> Iterable[EventLink]:
        """Have the event connections that are its own end; return them."""
        links = tuple(self._links) if self._owned else ()
        for link in links:
            link.close()
        return links

    # ------------------------------------------------------------------------------------------- subscribing

    async def subscribe(self, *channels: str | bytes) -> None:
        """Subscribe to channels; return when the server has confirmed all of them. If it raises, to none of them.

        Messages may come in before it returns. A channel that is subscribed to already stays as it is.

        Raises:
            NoPermissionError: The user may not; the error names the ACL rule that is lacking.
            CallTimeoutError: Not confirmed within `command_timeout`.
            DataError: A name is no str or bytes; nothing was sent.
            ValueError: No channel is given.
            trio.ClosedResourceError: The block, or that of the client, was left.
            RedisError: The server refuses it, or refuses the connection.
        """
        await self._subscribe(CHANNEL, channels)

    async def psubscribe(self, *patterns: str | bytes) -> None:
        """Subscribe to all channels whose names match one of some patterns (`*`, `?`, `[ab]`), as `subscribe` does."""
        await self._subscribe(PATTERN, patterns)

    async def ssubscribe(self, *channels: str | bytes) -> None:
        """Subscribe to shard channels, as `subscribe` does. They are filled by `spublish`, and live with their slot."""
        await self._subscribe(SHARD, channels)

    async def unsubscribe(self, *channels: str | bytes) -> None:
        """End subscriptions to channels; without arguments, to all of them. Those that there are not are passed over.

        Nothing of theirs comes in from now on; what waits in the buffer stays. The server is told, and not waited for.
        """
        await self._unsubscribe(CHANNEL, channels)

    async def punsubscribe(self, *patterns: str | bytes) -> None:
        """End subscriptions to patterns, as `unsubscribe` does."""
        await self._unsubscribe(PATTERN, patterns)

    async def sunsubscribe(self, *channels: str | bytes) -> None:
        """End subscriptions to shard channels, as `unsubscribe` does."""
        await self._unsubscribe(SHARD, channels)

    async def _subscribe(self, kind: bytes, names: tuple[str | bytes, ...]) -> None:
        await trio.lowlevel.checkpoint()
        self._inbox.check_open()
        if not names:
            raise ValueError("names must be at least one")
        topics = self._topics(kind, names)
        new = [topic for topic in topics if topic not in self._held]
        routed, done = self._routed(topics), list[Topic]()
        try:
            for link, some in routed.items():
                await link.subscribe(some, self._ear)
                done.extend(topic for topic in some if topic in new)
            self._inbox.check_open()  # the block was left meanwhile
        except BaseException:
            self._undo(routed, done)
            raise

    def _undo(self, routed: dict[EventLink, list[Topic]], done: list[Topic]) -> None:
        """Leave what was new, or all of it if the block was left; forget what is not subscribed to."""
        for link, topics in routed.items():
            link.unsubscribe((topic for topic in topics if topic in done or self._inbox.closed), self._ear)
            for topic in topics:
                if not link.holds(topic, self._ear):
                    self._held.pop(topic, None)

    def _routed(self, topics: Iterable[Topic]) -> dict[EventLink, list[Topic]]:
        """Return which event connection is to carry what, and note it: whoever leaves has to know."""
        routed: dict[EventLink, list[Topic]] = {}
        for topic in topics:
            link = self._held[topic] = self._held.get(topic) or self._route(topic)
            self._links[link] = None
            routed.setdefault(link, []).append(topic)
        return routed

    async def _unsubscribe(self, kind: bytes, names: tuple[str | bytes, ...]) -> None:
        topics = self._topics(kind, names) if names else [topic for topic in self._held if topic.kind == kind]
        await trio.lowlevel.checkpoint()
        self._leave(topics)

    def _leave(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            link = self._held.pop(topic, None)
            if link is not None:
                link.unsubscribe((topic,), self._ear)

    def _topics(self, kind: bytes, names: Iterable[str | bytes]) -> list[Topic]:
        return [Topic(kind, bytes(self._encoder.encode(name))) for name in names]

    # --------------------------------------------------------------------------------------------- consuming

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Wait for the next message. It never ends: leave the loop, or cancel it."""
        return await self.receive()

    async def receive(self) -> T:
        """Wait for the next message, or gap if these are told. Cancelled, it takes nothing away.

        Raises:
            SlowConsumerError: Messages were dropped at this point.
            UnicodeDecodeError: The message cannot be decoded; it is gone, the next one comes with the next call.
            trio.ClosedResourceError: The block, or that of the client, was left.
            RedisError: The server has ended a subscription, or refused to let it be made again after a lost connection.
        """
        return self._shaped(await self._inbox.get())

    async def get_message(self, timeout: float = 0.0) -> T | None:
        """Return the next message as `receive` does, or None if none comes within `timeout` seconds.

        Args:
            timeout: >= 0; 0 takes what is there; `math.inf` waits for ever.
        """
        item = await self._inbox.get_within(timeout)
        return None if item is None else self._shaped(item)

    def _shaped(self, item: list[Any] | Gap) -> T:
        if isinstance(item, Gap):
            return cast("T", item)
        decode = self._encoder.decode
        pattern = decode(item[1]) if item[0] == PATTERN else None
        return cast("T", Message(decode(item[-2]), decode(item[-1]), pattern, item[0].decode()))

    def statistics(self) -> PubSubStatistics:
        """Return the figures so far."""
        return PubSubStatistics(
            topics=len(self._held),
            received=self._ear.received,
            dropped=self._inbox.dropped,
            buffered=self._inbox.messages,
            gaps=self._ear.gaps,
        )


@final
class _Ear(Sink):
    """What the event connections of a pubsub tell it."""

    def __init__(self, inbox: Inbox, held: dict[Topic, EventLink], *, tells_gaps: bool) -> None:
        self._inbox = inbox
        self._held = held
        self._tells_gaps = tells_gaps
        self.received = 0
        self.gaps = 0

    def receive(self, push: list[Any], /) -> None:
        """Keep a message."""
        self.received += 1
        self._inbox.put(push)

    def miss(self, gap: Gap, /) -> None:
        """Count a gap, or tell of it."""
        self.gaps += 1
        if self._tells_gaps:
            self._inbox.notice(gap)

    def end(self, topic: Topic, error: Exception, /) -> None:
        """Forget a topic, and have the consumer told."""
        self._held.pop(topic, None)
        if isinstance(error, trio.ClosedResourceError):
            self._inbox.close()
        else:
            self._inbox.notice(error)


def own_route(make: Callable[[], EventLink]) -> Route:
    """Return a route to an event connection of one's own, made at the first need, and anew if it was refused."""
    made: list[EventLink] = []

    def route(_topic: Topic) -> EventLink:
        if not made or made[-1].closed:
            made[:] = [make()]
        return made[0]

    return route


def keyspace_channel(key: AnyStr, db: int | str = 0) -> AnyStr:
    """Return the channel, or with wildcards the pattern, of what happens to a key: its messages are names of events.

    The server sends them only if its `notify-keyspace-events` says so ("KA": all); on a cluster each node its own.

    Args:
        key: A key, or a pattern of keys for `psubscribe`.
        db: The number of the database, or "*" for `psubscribe`.
    """
    return _notification("keyspace", key, db)


def keyevent_channel(event: AnyStr, db: int | str = 0) -> AnyStr:
    """Return the channel of one kind of event ("expired", "del", "set"): its messages are keys. See `keyspace_channel`.

    The server sends them only if its `notify-keyspace-events` says so ("EA": all).
    """
    return _notification("keyevent", event, db)


def _notification(kind: str, name: AnyStr, db: int | str) -> AnyStr:
    prefix = f"__{kind}@{db}__:"
    if isinstance(name, str):
        return prefix + name
    return prefix.encode() + name
