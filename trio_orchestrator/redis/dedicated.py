"""A client on one connection of its own, for what blocks or leaves something behind; and the log of MONITOR."""

from __future__ import annotations

from types import TracebackType
from typing import Any, cast, final

import redis.asyncio.client
import trio

from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.error import CallTimeoutError
from trio_orchestrator.redis.hold import Hold
from trio_orchestrator.redis.method import Commands
from trio_orchestrator.redis.pipeline import Pipeline
from trio_orchestrator.redis.server import Server
from trio_orchestrator.redis.transaction import admitted
from trio_orchestrator.redis.wire import pack


@final
class DedicatedRedis(Commands):
    """A client on a connection that nobody else uses: `async with redis.dedicated() as d`.

        async with redis.dedicated() as d:
            await d.set("balance", 7)
            replicas = await d.wait(1, 100)  # how many have it: WAIT speaks of this connection's writes

    It is for `WAIT` and `WAITAOF`, for several blocking commands in a row, for `WATCH`, `MULTI` and `EXEC` by hand, and
    for traffic that must not hold up others. Its commands run in order, one after another.

    Entering waits for a connection, as long as that takes: first come, first served, `max_dedicated` at once. Leaving
    does not block: the connection goes back, or is closed if a call was given up on it or something stateful was done.
    If it is lost, every call raises `LinkError`: it is never replaced, since what was said on it would be gone.

    Args:
        server: Whose connection.
        answers: How the client packs, and what it makes of replies.
    """

    def __init__(self, server: Server, answers: Answers) -> None:
        """Made by `redis.dedicated()`."""
        super().__init__(answers)
        self._hold = Hold(server)
        self._call_timeout = server.settings.command_timeout

    async def __aenter__(self) -> DedicatedRedis:
        await self._hold.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hold.close()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute any command, its name first; all methods come down to this.

        Raises:
            RefusedCommandError: Not even a connection of one's own takes it (SUBSCRIBE, SELECT, MONITOR). The error
                says what to do.
            DataError: An argument is of no known type; nothing was sent.
            CallTimeoutError: No answer within `command_timeout` and what the command itself may wait.
            LinkError: The connection is lost; `sent` says whether the command may have run.
            ResponseError: What the server says against it.
        """
        kind = await admitted(self._hold, args)
        return await self._speak(lambda call: self._hold.call(call, kind.blocks(args)), kind, args, options)

    def pipeline(self, transaction: bool = False) -> Pipeline:
        """Return a pipeline on this connection; not a transaction by default. It takes what blocks, too (WAIT)."""
        return Pipeline(self._hold, self._answers, transaction=transaction)


@final
class _Log(Call):
    """A call that is answered for ever."""

    want = 0

    def __init__(self, size: float) -> None:
        super().__init__(pack(("MONITOR",)))
        self._put, self.lines = trio.open_memory_channel[Any](size)
        self.missed: int = 0

    def take(self, reply: Any) -> bool:
        try:
            self._put.send_nowait(reply)
        except trio.WouldBlock:
            self.missed += 1
        except trio.BrokenResourceError:
            pass  # nobody looks any more
        return False

    def settle(self, answer: Any) -> None:
        self.answer = answer
        self._put.close()

    async def read_response(self) -> Any:
        """Return the next line."""
        try:
            line = await self.lines.receive()
        except trio.EndOfChannel:
            line = self.answer
        if isinstance(line, Exception):
            raise line
        return line


@final
class Monitor:
    """All commands that a server executes: `async with redis.monitor() as commands: async for command in commands`.

    Each is a dict as from `redis.asyncio`: time, db, client_address, client_port, client_type, command. It has a
    connection of its own, closed at the end. A server that is watched like this is slower by half: for debugging.

    Args:
        server: Which server.
        answers: For decoding.
        buffer: So many commands are kept while nobody takes them; those beyond are counted in `missed`.
    """

    __slots__ = ("_buffer", "_hold", "_log", "_parser", "_timeout")

    def __init__(self, server: Server, answers: Answers, *, buffer: float = 10_000) -> None:
        """Made by `redis.monitor()`."""
        self._hold = Hold(server)
        self._timeout = server.settings.command_timeout
        self._log = _Log(buffer)
        self._log.encoder = answers.encoder  # type: ignore[attr-defined]
        self._parser = redis.asyncio.client.Monitor(cast("Any", None))
        self._parser.connection = cast("Any", self._log)

    @property
    def missed(self) -> int:
        """How many commands were not kept, since nobody took those before."""
        return self._log.missed

    async def __aenter__(self) -> Monitor:
        await self._hold.open()
        self._hold.taint()
        try:
            await self._begin()
        except BaseException:
            self._hold.close()
            raise
        return self

    async def _begin(self) -> None:
        connection = self._hold.connection
        connection.post(self._log)
        with trio.move_on_after(self._timeout):
            await self._log.read_response()
            return
        raise CallTimeoutError(self._timeout, connection.address, sent=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._log.lines.close()
        self._hold.close()

    def __aiter__(self) -> Monitor:
        """Return itself."""
        return self

    async def __anext__(self) -> dict[str, Any]:
        """Wait for the next command.

        Raises:
            LinkError: The connection was lost.
        """
        return cast("dict[str, Any]", await self._parser.next_command())
