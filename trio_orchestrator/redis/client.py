"""redis-py's commands on a link of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, final

import trio
from redis.commands import AsyncCoreCommands, AsyncRedisModuleCommands
from redis.exceptions import ResponseError

from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.command import Kind, Route, kind_of_call
from trio_orchestrator.redis.connection import Connection
from trio_orchestrator.redis.error import CallTimeoutError
from trio_orchestrator.redis.link import Link, LinkStatistics
from trio_orchestrator.redis.server import Server


class Commands(AsyncRedisModuleCommands, AsyncCoreCommands):  # type: ignore[misc]
    """redis-py's command methods on something that can execute them. Their answers are those of `redis.asyncio`."""

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
        if kind.reads or options.get("resend"):
            call.resend = True
        if options and self._answers.is_raw(options):
            call.raw = True
        return call

    async def _speak(self, speak: Callable[[Call], Awaitable[Any]], kind: Kind, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Send one command by `speak`; return what redis-py's method is to return."""
        try:
            reply = await speak(self._call(kind, args, options))
        except ResponseError as error:
            return self._answers.of_refusal(error, options)
        return await self._answers.shape(args[0], reply, options)


@final
class Redis(Commands):
    """A client of one server, or of the master that Sentinels name. Made by `open_redis` and `open_sentinel`.

    It has redis-py's command methods, with the answers of `redis.asyncio`. All ordinary calls share one connection: those
    of one tick leave in one write, and a cancelled call leaves its place without closing anything. Commands of one task are
    executed in its order; those of different tasks have no order between them. What blocks goes to a connection of its own.
    """

    def __init__(self, server: Server, answers: Answers, *, allow_keys: bool = False, link: Link | None = None) -> None:
        super().__init__(answers)
        self._server = server
        self._link = server.link if link is None else link
        self._allowed = frozenset({"allow_keys"} if allow_keys else ())

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute any command, its name first; all methods come down to this.

        Args:
            args: The name and its arguments: str, bytes, int or float.
            options: Of redis-py's callbacks; and `resend=True`: may run twice, so send it again if its connection is lost.

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
        if options:
            return await self._speak(self._link.call, kind, args, options)
        call = Call(self._answers.pack(args))
        if kind.reads:
            call.resend = True
        reply = await self._link.call(call)
        return await self._answers.shape(args[0], reply, options)

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
            return await self._speak(self._patient(connection, kind.blocks(args)), kind, args, options)

    def _patient(self, connection: Connection, blocks: float | None) -> Callable[[Call], Awaitable[Any]]:
        """Return how to call on a connection of one's own: with what the server may take on purpose added to the time-out."""
        after = self._server.settings.command_timeout + (blocks or 0.0)

        async def call(call: Call) -> Any:
            with trio.move_on_after(after):
                return await connection.call(call)
            raise CallTimeoutError(after, connection.address, sent=True)

        return call

    def statistics(self) -> LinkStatistics:
        """Return the figures of the shared link."""
        return self._link.statistics()
