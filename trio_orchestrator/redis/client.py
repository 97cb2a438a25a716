"""redis-py's commands on a link of ours."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from types import CoroutineType
from typing import Any, Literal, cast, final, overload

import trio
from redis.backoff import AbstractBackoff
from redis.exceptions import ResponseError

from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.command import Kind, Route, kind_of_call
from trio_orchestrator.redis.dedicated import DedicatedRedis, Monitor
from trio_orchestrator.redis.event_link import EventLink
from trio_orchestrator.redis.inbox import Overflow
from trio_orchestrator.redis.key import named
from trio_orchestrator.redis.link import LinkStatistics
from trio_orchestrator.redis.method import Commands as Commands
from trio_orchestrator.redis.pipeline import LinkHost, Pipeline
from trio_orchestrator.redis.post import Post
from trio_orchestrator.redis.pubsub import Message, PubSub, own_route
from trio_orchestrator.redis.server import Server, open_server
from trio_orchestrator.redis.subscription import Gap
from trio_orchestrator.redis.topic import Topic
from trio_orchestrator.redis.transaction import Body, Retrying, Transaction


@final
@dataclass(frozen=True, slots=True)
class RedisStatistics(LinkStatistics):
    """The figures of a client: those of its shared link, and of the connections beside it."""

    dedicated: int
    """How many dedicated connections are leased now."""
    dedicated_waiting: int
    """How many tasks wait for one."""
    events: tuple[LinkStatistics, ...]
    """The event connections: the shared one, and those of `pubsub()`."""


@final
class Redis(Commands):
    """A client of one server, or of the master that Sentinels name. Made by `open_redis` and `open_sentinel`.

    It has redis-py's command methods, with the answers of `redis.asyncio`. All calls share one connection; those of one
    tick leave in one write. A cancelled call leaves its place in the row and closes nothing. Commands of one task
    are executed in its order; those of different tasks have no order between them. What blocks goes to a connection of
    its own.
    """

    def __init__(self, server: Server, answers: Answers, *, allowed: frozenset[str] = frozenset()) -> None:
        """Made by `open_redis`."""
        super().__init__(answers)
        self._server = server
        self._link = server.link
        self._call_timeout = server.settings.command_timeout
        self._allowed = allowed

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute any command, its name first; all methods come down to this.

        Args:
            args: The name and its arguments: str, bytes, int or float.
            options: Of redis-py's callbacks; and `resend=True`: it may run twice, so it is sent again after a lost
                connection.

        Raises:
            RefusedCommandError: It cannot share a connection with others; nothing was sent. The error says what to do.
            DataError: An argument is of no such type; nothing was sent.
            CallTimeoutError: No answer within `command_timeout`.
            LinkError: The connection was lost after the command was sent, so that it may have run.
            ResponseError: What the server says against it.
        """
        kind = kind_of_call(args)
        if kind.route is not Route.SHARED or kind.timeout_of is not None:
            return await self._unshared(kind, args, options)
        call = self._call(kind, args, options)
        try:
            reply = await self._link.call(call)
        except ResponseError as error:
            return self._answers.of_refusal(error, options)
        shaped: Any = self._answers.shape(args[0], reply, options)
        return await cast("Awaitable[Any]", shaped) if isinstance(shaped, CoroutineType) else shaped

    async def _unshared(self, kind: Kind, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Execute what must not go over the shared connection; refuse what could only be wrong."""
        route = kind.route_for(args)
        if route is Route.REFUSED and kind.option not in self._allowed:
            await trio.lowlevel.checkpoint()
            raise kind.refusal(named(args)[0])
        if route is not Route.DEDICATED:
            return await self._speak(self._link.call, kind, args, options)
        speak = partial(self._server.call_apart, blocks=kind.blocks(args), stateful=kind.stateful)
        return await self._speak(speak, kind, args, options)

    def post(self, *args: Any) -> None:
        """Send a command behind all that was sent before, and do not wait for its reply. Sync: it cannot be cancelled.

        Behind a call that was cancelled it is exact: if that was sent, this comes after it on the same connection; if
        that was not, it never will be. If the connection is lost first, it is the first on the next one. It does not
        count against `max_in_flight`. An error reply is thrown away, but a replica's refusal (`reconnect_on`) has the
        master looked for, and the command posted there once.

        What is posted while there is no connection is kept for the next one, in whatever number and however long that
        takes: post what is rare, and right even if it is late, such as giving back what is yours.

        Raises:
            DataError: An argument is of no known type, or the command cannot share a connection with others.
            trio.ClosedResourceError: The block of the client was left.
        """
        kind = kind_of_call(args)
        if kind.route_for(args) is not Route.SHARED:
            raise kind.refusal(named(args)[0])
        self._link.post(Post(self._answers.pack(args), self._link, self._server.settings.reconnect_on))

    # ------------------------------------------------------------------------- several commands, one connection

    def pipeline(self, transaction: bool = False, *, resend: bool = False) -> Pipeline:
        """Return a pipeline: commands that are sent together. **Not a transaction by default**, unlike redis-py's.

        Args:
            transaction: Whether MULTI and EXEC go around it, so that all is executed or nothing, with nothing between.
            resend: Whether it may run twice, so that it is sent again after a lost connection.
        """
        host = LinkHost(self._link, self._server.settings, self._allowed)
        return Pipeline(host, self._answers, transaction=transaction, resend=resend)

    def watch(self, *keys: Any) -> Transaction:  # type: ignore[override]
        """Return a transaction that is executed only if keys are unchanged: `async with redis.watch("stock") as tx`."""
        return Transaction(self._server, self._answers, keys)

    async def transaction(
        self,
        body: Body,
        *keys: Any,
        attempts: float = math.inf,
        within: float = 10.0,
        backoff: AbstractBackoff | None = None,
        value_from_callable: bool = False,
    ) -> Any:
        """Watch keys, call `body(tx)`, execute what it has queued; all of it again if somebody changed a key meanwhile.

        `body` reads by `await tx.get(...)`, then calls `tx.multi()` and queues. It is called once an attempt, so that
        what else it does may happen several times. It may be sync.

        Cancelling ends it anywhere; an EXEC that was sent may run. A lost connection is not an attempt that failed: it
        is raised.

        Args:
            body: What is to be done.
            keys: What is watched.
            attempts: The most attempts, >= 1; `inf`: until the time is up.
            within: No attempt begins later than so many seconds after the first.
            backoff: The pause after so many failures; by default at random up to 1 ms, 2 ms ... 250 ms.
            value_from_callable: Whether to return what `body` returns, rather than the results of the commands.

        Raises:
            WatchError: The last attempt failed too; a note says how many there were.
            LinkError: The connection was lost; `sent` says whether the EXEC may have run.
        """
        retrying = Retrying(attempts=attempts, within=within, backoff=backoff, value_from_callable=value_from_callable)
        async with Transaction(self._server, self._answers, keys) as tx:
            return await retrying.run(body, tx, keys)

    def dedicated(self) -> DedicatedRedis:
        """Return a client on a connection of its own: `async with redis.dedicated() as d`."""
        return DedicatedRedis(self._server, self._answers)

    def monitor(self, *, buffer: float = 10_000) -> Monitor:
        """Return the log of all commands: `async with redis.monitor() as commands: async for command in commands`.

        Args:
            buffer: So many are kept while nobody takes them.
        """
        return Monitor(self._server, self._answers, buffer=buffer)

    @overload
    def pubsub(
        self, *, shared: bool = False, buffer: float = 1000, overflow: Overflow = "raise", gaps: Literal[False] = False
    ) -> PubSub[Message]: ...

    @overload
    def pubsub(
        self, *, gaps: bool, shared: bool = False, buffer: float = 1000, overflow: Overflow = "raise"
    ) -> PubSub[Message | Gap]: ...

    def pubsub(
        self, *, shared: bool = False, buffer: float = 1000, overflow: Overflow = "raise", gaps: bool = False
    ) -> PubSub[Any]:
        """Return a set of subscriptions, to be entered: `async with redis.pubsub() as sub`. See `PubSub`.

        Args:
            shared: Whether it listens on the event connection that all of the client share, instead of one of its own,
                where a flood of others' messages cannot delay its own.
            buffer: So many messages are kept until they are taken, >= 1; `math.inf`: all of them.
            overflow: What happens to those beyond. "raise": the newest are dropped, and `SlowConsumerError` is raised
                where they are missing, because a loss that nobody notices is the worst one; "drop_oldest", for those
                who want to see the present; or "drop_newest". Dropped messages are counted in `statistics()`.
            gaps: Whether a `Gap` comes between the messages where the connection was lost.
        """
        server = self._server
        own = partial(server.add_event_link, f"pubsub of {server.name}")
        route = partial(_shared, server) if shared else own_route(own)
        encoder = self._answers.encoder
        return PubSub(route, encoder, owned=not shared, buffer=buffer, overflow=overflow, gaps=gaps)

    def sibling(self) -> AbstractAsyncContextManager[Redis]:
        """Open a second client of the same server, on connections of its own: `async with redis.sibling() as other`.

        What it sends does not wait behind bulk traffic on this one: huge values, slow scripts, a full window.
        """
        return _open_sibling(self)

    def statistics(self) -> RedisStatistics:
        """Return the figures of the shared link, and of the connections beside it."""
        leases = self._server.leases
        return RedisStatistics(
            **asdict(self._link.statistics()),
            dedicated=leases.used,
            dedicated_waiting=leases.waiting,
            events=tuple(link.statistics() for link in self._server.event_links),
        )


async def _siblings(elder: Redis) -> AsyncGenerator[Redis, None]:
    server = elder._server.twin()
    try:
        async with open_server(server, 0, elder._server.close_within):
            yield Redis(server, elder._answers, allowed=elder._allowed)
    finally:
        elder._server.forget(server)


_open_sibling = asynccontextmanager(_siblings)


def _shared(server: Server, _topic: Topic) -> EventLink:
    return server.events
