"""The event connection: all that a server says unasked, told to those who have subscribed to it.

What is wanted and what the server has confirmed are kept apart, and whatever differs is asked for, one round of calls
at a time. So a subscription that is cancelled, at any point, is only one that is no longer wanted, and a lost
connection is one on which nothing is confirmed.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable
from typing import Any, final

import trio
from redis.exceptions import MovedError, PubSubError, RedisError

from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.connection import Connection
from trio_orchestrator.redis.connector import Connector, LinkSettings
from trio_orchestrator.redis.error import CallTimeoutError
from trio_orchestrator.redis.link import Link, LinkStatistics
from trio_orchestrator.redis.subscription import Gap, Seat, Sink, Subscriptions
from trio_orchestrator.redis.topic import CHANNEL, CONFIRMATIONS, PATTERN, SHARD, Ask, Topic, explained
from trio_orchestrator.redis.wire import pack

_logger = logging.getLogger("trio_orchestrator")
_MESSAGES = frozenset({CHANNEL, PATTERN, SHARD})


@final
class EventLink:
    """A link that only listens. It must be run by a task of its own, and ends with that.

    After a lost connection all is subscribed to again before anybody is told; then every sink that was subscribed to
    something is told of the gap, once.

    Args:
        name: For events and errors.
        connector: Makes its connections, which are its own.
        settings: Bounds of time and number.
        moved: Told that the server does not serve a shard channel any more; then the connection is made again, to
            wherever the connector finds by then. None: the subscription ends.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        settings: LinkSettings,
        *,
        moved: Callable[[Exception], None] | None = None,
    ) -> None:
        self.name: str = name
        self._moved = moved
        self._link = Link(name, connector.undecoded(name), settings, push=self._hear, ready=self._adopt)
        self._timeout = settings.command_timeout
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._error: Exception | None = None
        self._subscriptions = Subscriptions()
        self._trackers: dict[Sink, None] = {}
        self._connection: Connection | None = None
        self._asking: set[Ask] = set()
        self._asked = 0
        self._lost_at = math.inf
        self._resuming: set[Topic] = set()
        self._owed: set[Sink] = set()

    # ------------------------------------------------------------------------------------------- subscribing

    async def subscribe(self, topics: Iterable[Topic], sink: Sink) -> None:
        """Have a sink told of all messages of some topics: all of them or, if this raises or is cancelled, none.

        Messages may be told before this returns. Topics that the sink has already are left as they are.

        Raises:
            NoPermissionError: The user may not; the error names the ACL rule that is lacking.
            CallTimeoutError: The server has not confirmed it within `command_timeout`.
            trio.ClosedResourceError: The block of the client was left.
            RedisError: The server refuses it, or refuses the connection.
        """
        await trio.lowlevel.checkpoint()
        self._check_open()
        seats = [self._subscriptions.join(topic, sink) for topic in dict.fromkeys(topics)]
        self._ask()
        try:
            await self._wait_live(seats)
            for seat in seats:
                seat.kept = True
        finally:
            for seat in seats:
                self._subscriptions.rise(seat)
            self._ask()

    def unsubscribe(self, topics: Iterable[Topic], sink: Sink) -> None:
        """Tell a sink nothing more of some topics; of those that it does not have it is not told anyway. Sync."""
        for topic in topics:
            seat = self._subscriptions.seat(topic, sink)
            if seat is not None:
                self._subscriptions.vacate(seat)
        self._ask()

    def holds(self, topic: Topic, sink: Sink) -> bool:
        """Return whether a sink is told of a topic."""
        return self._subscriptions.seat(topic, sink) is not None

    async def _wait_live(self, seats: list[Seat]) -> None:
        with trio.move_on_after(self._timeout):
            await trio.lowlevel.checkpoint()
            for seat in seats:
                while not self._is_settled(seat):
                    await seat.audience.changed.park()
            return
        sent = self._link.connection is not None
        raise CallTimeoutError(self._timeout, self._link.statistics().address or self.name, sent=sent)

    def _is_settled(self, seat: Seat) -> bool:
        """Return whether there is nothing more to wait for. Raises the refusal."""
        audience = seat.audience
        if audience.refusal is not None:
            raise copy.copy(audience.refusal)
        return seat.gone or (audience.live and self._is_connected())

    def _is_connected(self) -> bool:
        return self._connection is not None and self._link.connection is self._connection

    # -------------------------------------------------------------------------------------- client tracking

    def track(self, sink: Sink) -> None:
        """Tell a sink of all `invalidate` pushes, and of all gaps. Sync."""
        self._trackers[sink] = None

    def untrack(self, sink: Sink) -> None:
        """Tell a sink of `invalidate` pushes no more. Sync."""
        self._trackers.pop(sink, None)

    async def redirect_id(self) -> int:
        """Return the id of the connection, for `CLIENT TRACKING ON REDIRECT`. After a gap it is another one.

        Raises:
            RedisError: The server did not answer.
            trio.ClosedResourceError: The block of the client was left.
        """
        question = Call(pack(("CLIENT", "ID")))
        question.resend = True
        return int(await self._link.call(question))

    # ---------------------------------------------------------------------------------------------- its task

    @property
    def closed(self) -> bool:
        """Whether it has ended, so that another one is needed."""
        return self._error is not None

    async def run(self) -> None:
        """Connect, listen, and connect again, until `close`, or until it is cancelled."""
        await trio.lowlevel.cancel_shielded_checkpoint()  # whatever happens, its end is noted
        try:
            with self._scope:
                await self._link.run(patience=math.inf)
                await self._link.wait_ready()  # it has ended by itself, and this raises why
        except RedisError as error:
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        error = self._error = self._error or trio.ClosedResourceError(f"{self.name} was closed")
        for topic in tuple(self._subscriptions):
            self._refuse(topic, error)
        self._ended.set()

    def close(self) -> None:
        """End it at once. Sync."""
        self._error = self._error or trio.ClosedResourceError(f"{self.name} was closed")
        self._scope.cancel(reason="the event connection is not needed any more")

    async def wait_closed(self) -> None:
        """Wait until nothing of it is left, after `close`: a few steps."""
        await self._ended.wait()

    def drop(self, cause: BaseException) -> None:
        """End the connection at once, and connect to wherever the server is by then. Sync."""
        self._link.drop(cause)

    def statistics(self) -> LinkStatistics:
        """Return the figures of the link."""
        return self._link.statistics()

    def _check_open(self) -> None:
        if self._error is not None:
            raise copy.copy(self._error)

    # ----------------------------------------------------------------------------- what is asked of the server

    def _ask(self) -> None:
        """Ask for what differs, unless an answer is still owed, or there is no connection: then that comes first."""
        if self._asking or self._error is not None or not self._is_connected():
            return
        for verb, topics in self._subscriptions.orders():
            self._asked += 1
            ask = Ask(verb, topics, self._asked, self._answered)
            self._asking.add(ask)
            self._link.post(ask)

    def _answered(self, ask: Ask) -> None:
        self._asking.discard(ask)
        if ask.refusal is not None:
            self._refused(ask, ask.refusal)
        self._ask()
        self._tell_gap()

    def _refused(self, ask: Ask, refusal: Exception) -> None:
        topics = ask.topics
        if not ask.subscribes:  # those messages come as before, and are told to nobody
            for topic in topics:
                self._subscriptions.confirm(topic, subscribed=False)
        elif self._moved is not None and isinstance(refusal, MovedError):
            self._move(self._moved, refusal)
        elif len(topics) > 1:
            self._subscriptions.separate(topics)
        else:
            self._refuse(topics[0], explained(refusal, ask.verb, topics[0]))

    def _refuse(self, topic: Topic, error: Exception) -> None:
        for sink in self._subscriptions.refuse(topic, error):
            _tell(sink.end, topic, copy.copy(error))

    # ---------------------------------------------------------------------------------- a new connection

    def _adopt(self, connection: Connection) -> None:
        """Subscribe again to all that is wanted."""
        if self._connection is not None:
            self._lost_at = min(self._lost_at, self._connection.heard_at)
            self._owed = self._subscriptions.sinks()
        self._connection = connection
        self._asking.clear()
        self._withdraw()
        self._subscriptions.reset()
        self._resuming = set(self._subscriptions)
        self._ask()
        self._tell_gap()

    def _withdraw(self) -> None:
        """Take back what was asked for on the lost connection and was not sent."""
        outbox = self._link.outbox
        for call in outbox.clear():
            if not isinstance(call, Ask):
                outbox.add(call)

    def _tell_gap(self) -> None:
        """Tell of a gap, once the server has confirmed or refused all that was wanted when it ended."""
        self._resuming = {topic for topic in self._resuming if self._is_pending(topic)}
        if self._resuming or self._lost_at == math.inf:
            return
        gap = Gap(self._lost_at, trio.current_time())
        owed = [*(self._owed & self._subscriptions.sinks()), *self._trackers]
        self._lost_at = math.inf
        self._owed.clear()
        for sink in dict.fromkeys(owed):
            _tell(sink.miss, gap)

    def _is_pending(self, topic: Topic) -> bool:
        audience = self._subscriptions.audience(topic)
        return audience is not None and not audience.live

    # ------------------------------------------------------------------------------------------ what it hears

    def _hear(self, push: list[Any]) -> None:
        kind = push[0]
        if kind in _MESSAGES:
            audience = self._subscriptions.audience(Topic(kind, push[1]))
            if audience is not None:
                for sink in audience.sinks:
                    _tell(sink.receive, push)
        elif kind in CONFIRMATIONS:
            self._confirm(kind, push[1])
        elif kind == b"invalidate":
            for sink in tuple(self._trackers):
                _tell(sink.receive, push)

    def _confirm(self, verb: bytes, name: bytes) -> None:
        kind, subscribed = CONFIRMATIONS[verb]
        topic = Topic(kind, name)
        self._subscriptions.confirm(topic, subscribed=subscribed)
        ask = self._front()
        if ask is not None and ask.verb == verb and topic in ask.unconfirmed:
            ask.unconfirmed.remove(topic)
        elif not subscribed:  # the server did it by itself
            error = PubSubError(f"the server has ended the subscription to {name!r}: its slot has moved")
            if self._moved is not None:
                self._move(self._moved, error)
            else:
                self._refuse(topic, error)

    def _move(self, moved: Callable[[Exception], None], error: Exception) -> None:
        moved(error)
        self._link.drop(error)

    def _front(self) -> Ask | None:
        """Return the call whose pushes come now."""
        row = self._connection.conversation.row if self._connection is not None else ()
        return row[0] if row and isinstance(row[0], Ask) else None


def _tell(tell: Callable[..., None], *args: object) -> None:
    """Tell a sink something. If it raises, that is its own affair: the connection goes on."""
    try:
        tell(*args)
    except Exception:
        _logger.exception("a sink of pushes raised: %r", tell)
