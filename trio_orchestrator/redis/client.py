"""redis-py's commands on a link of ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import CoroutineType
from typing import Any, cast, final

import trio
from redis.commands import AsyncCoreCommands, AsyncRedisModuleCommands
from redis.exceptions import ResponseError

from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.command import Kind, Route, kind_of_call
from trio_orchestrator.redis.link import LinkStatistics
from trio_orchestrator.redis.server import CLOSE_WITHIN, Server, open_server


class Commands(AsyncRedisModuleCommands, AsyncCoreCommands):  # type: ignore[misc]
    """redis-py's command methods on something that can execute them. Their answers are those of `redis.asyncio`."""

    _event_dispatcher: Any = None  # redis-py's protocol names it; none of its commands uses it

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def get_encoder(self) -> Any:
        """Return redis-py's encoder, which some of its commands ask for."""
        return self._answers.encoder

    def set_response_callback(self, command: str, callback: Callable[..., Any]) -> None:
        """Have what the server answers to a command go through `callback(reply, **options)`, for this client."""
        self._answers.set_callback(command, callback)

    def _call(self, kind: Kind, args: tuple[Any, ...], options: dict[str, Any]) -> Call:
        call = Call(self._answers.pack(args))
        if kind.reads:
            call.resend = True
        if options:
            call.resend = call.resend or bool(options.get("resend"))
            call.raw = self._answers.is_raw(options)
        return call

    async def _speak(
        self, speak: Callable[[Call], Awaitable[Any]], kind: Kind, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Send one command by `speak`; return what redis-py's method is to return."""
        call = self._call(kind, args, options)
        try:
            reply = await speak(call)
        except ResponseError as error:
            return self._answers.of_refusal(error, options)
        shaped: Any = self._answers.shape(args[0], reply, options)
        return await cast("Awaitable[Any]", shaped) if isinstance(shaped, CoroutineType) else shaped


@final
class Redis(Commands):
    """A client of one server, or of the master that Sentinels name. Made by `open_redis` and `open_sentinel`.

    It has redis-py's command methods, with the answers of `redis.asyncio`. All calls share one connection; those of one
    tick leave in one write. A cancelled call leaves its place in the row and closes nothing. Commands of one task
    are executed in its order; those of different tasks have no order between them. What blocks goes to a connection of
    its own.
    """

    def __init__(self, server: Server, answers: Answers, *, allowed: frozenset[str] = frozenset()) -> None:
        super().__init__(answers)
        self._server = server
        self._link = server.link
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
            raise kind.refusal(args[0])
        if route is not Route.DEDICATED:
            return await self._speak(self._link.call, kind, args, options)
        lease = self._server.leases.lease()
        async with lease as connection:
            lease.dirty = kind.stateful
            speak = partial(self._server.call_patiently, connection, blocks=kind.blocks(args))
            return await self._speak(speak, kind, args, options)

    def post(self, *args: Any) -> None:
        """Send a command behind all that was sent before, and do not wait for its reply. Sync: it cannot be cancelled.

        Behind a call that was cancelled it is exact: if that was sent, this comes after it on the same connection; if
        that was not, it never will be. If the connection is lost first, it is the first on the next one. It does not
        count against `max_in_flight`. An error reply is thrown away.

        Raises:
            DataError: An argument is of no known type, or the command cannot share a connection with others.
            trio.ClosedResourceError: The block of the client was left.
        """
        kind = kind_of_call(args)
        if kind.route_for(args) is not Route.SHARED:
            raise kind.refusal(args[0])
        self._link.post(Call(self._answers.pack(args)))

    def sibling(self) -> AbstractAsyncContextManager[Redis]:
        """Open a second client of the same server, on connections of its own: `async with redis.sibling() as other`.

        What it sends does not wait behind bulk traffic on this one: huge values, slow scripts, a full window.
        """
        return _open_sibling(self)

    def statistics(self) -> LinkStatistics:
        """Return the figures of the shared link."""
        return self._link.statistics()


async def _siblings(elder: Redis) -> AsyncGenerator[Redis, None]:
    server = elder._server.twin()
    async with open_server(server, 0, CLOSE_WITHIN):
        yield Redis(server, elder._answers, allowed=elder._allowed)


_open_sibling = asynccontextmanager(_siblings)
