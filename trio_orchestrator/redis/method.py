"""redis-py's command methods, for everything that can execute a command: clients, pipelines, transactions."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from json import JSONDecoder, JSONEncoder
from types import CoroutineType
from typing import Any, Final, Literal, cast

import trio
from redis.commands import AsyncCoreCommands, AsyncRedisModuleCommands
from redis.exceptions import NoScriptError, ResponseError

from trio_orchestrator.redis.answer import Answers
from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.command import Kind
from trio_orchestrator.redis.error import CallTimeoutError
from trio_orchestrator.redis.module import Json, namespace_of
from trio_orchestrator.redis.scan import Scan
from trio_orchestrator.redis.script import Script

_MODULES: Final[Any] = AsyncRedisModuleCommands
_JSON: Final[Any] = Json
_ENCODER: Final = JSONEncoder()
_DECODER: Final = JSONDecoder()


class Commands(AsyncRedisModuleCommands, AsyncCoreCommands):  # type: ignore[misc]
    """redis-py's command methods on something that can execute them. Their answers are those of `redis.asyncio`."""

    _is_async_client: Literal[True] = True
    _call_timeout: float = math.inf
    """So many seconds one call may take."""
    _event_dispatcher: Any = None  # redis-py's protocol names it; none of its commands uses it

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def get_encoder(self) -> Any:
        """Return redis-py's encoder, which some of its commands ask for."""
        return self._answers.encoder

    def get_connection_kwargs(self) -> dict[str, Any]:
        """Return how answers are to look, which some of redis-py's commands ask for; nothing of the connection."""
        return dict(self._answers.shapes)

    def set_response_callback(self, command: str, callback: Callable[..., Any]) -> None:
        """Have what the server answers to a command go through `callback(reply, **options)`, for this client."""
        self._answers.set_callback(command, callback)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute any command, its name first; all methods come down to this. What it returns is to be awaited."""
        raise NotImplementedError

    def watch(self, *names: Any) -> Any:
        """Execute `WATCH`, where that makes sense: on a connection of one's own."""
        return self.execute_command("WATCH", *names)

    def unwatch(self) -> Any:
        """Execute `UNWATCH`, where that makes sense: on a connection of one's own."""
        return self.execute_command("UNWATCH")

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

    # ------------------------------------------------------------------------------------------- modules

    def json(self, encoder: Any = _ENCODER, decoder: Any = _DECODER) -> Any:
        """Return the commands of JSON."""
        return namespace_of(self, lambda client: _JSON(client=client, encoder=encoder, decoder=decoder))

    def ft(self, index_name: str = "idx") -> Any:
        """Return the commands of search, on one index."""
        return namespace_of(self, lambda client: _MODULES.ft(client, index_name))

    def ts(self) -> Any:
        """Return the commands of time series."""
        return namespace_of(self, _MODULES.ts)

    def bf(self) -> Any:
        """Return the commands of Bloom filters."""
        return namespace_of(self, _MODULES.bf)

    def cf(self) -> Any:
        """Return the commands of cuckoo filters."""
        return namespace_of(self, _MODULES.cf)

    def cms(self) -> Any:
        """Return the commands of count-min sketches."""
        return namespace_of(self, _MODULES.cms)

    def topk(self) -> Any:
        """Return the commands of top-k lists."""
        return namespace_of(self, _MODULES.topk)

    def tdigest(self) -> Any:
        """Return the commands of t-digests."""
        return namespace_of(self, _MODULES.tdigest)

    def vset(self) -> Any:
        """Return the commands of vector sets."""
        return namespace_of(self, _MODULES.vset)

    # ------------------------------------------------------------------------------------------- scripts

    def register_script(self, script: Any) -> Script:  # type: ignore[override]
        """Return a Lua script that can be called: `await script(keys=["a"], args=[1])`. Nothing is sent by this."""
        return Script(self, script)

    def execute_script(
        self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], *, resend: bool, readonly: bool
    ) -> Awaitable[Any]:
        """Execute a script; what `await script(...)` comes down to."""
        return self._execute_script(script, keys, args, {"resend": True} if resend else {}, readonly)

    async def _execute_script(
        self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], options: dict[str, Any], readonly: bool
    ) -> Any:
        until = trio.current_time() + self._call_timeout
        with suppress(NoScriptError):
            return await self.execute_command(*script.command(keys, args, readonly=readonly), **options)
        with trio.move_on_at(until):  # it is one call, with one time
            return await self.execute_command(*script.full_command(keys, args, readonly=readonly), **options)
        raise CallTimeoutError(self._call_timeout, "the server", sent=True)

    # ------------------------------------------------------------------------------------- going through all

    def scan_iter(  # type: ignore[override]
        self, match: Any = None, count: int | None = None, _type: str | None = None, **options: Any
    ) -> Scan[Any]:
        """Go through all keys, in no order: `async for key in redis.scan_iter("user:*")`.

        Args:
            match: A pattern for the keys.
            count: About how many keys the server looks at for one page.
            _type: Only keys of this type: string, list, set, zset, hash, stream.
            options: For `scan`.
        """
        client: Any = self
        return Scan(lambda cursor: client.scan(cursor, match, count, _type, **options))

    def sscan_iter(  # type: ignore[override]
        self, name: Any, match: Any = None, count: int | None = None
    ) -> Scan[Any]:
        """Go through all members of a set. `match` and `count` as in `scan_iter`."""
        return Scan(lambda cursor: self.sscan(name, cursor, match, count))

    def hscan_iter(  # type: ignore[override]
        self, name: Any, match: Any = None, count: int | None = None, no_values: bool | None = None
    ) -> Scan[Any]:
        """Go through all fields of a hash, as pairs of field and value; with `no_values` as fields only."""

        async def page(cursor: int) -> tuple[int, Any]:
            found: Any
            cursor, found = await self.hscan(name, cursor, match, count, no_values)
            return cursor, found if no_values else found.items()

        return Scan(page)

    def zscan_iter(  # type: ignore[override]
        self, name: Any, match: Any = None, count: int | None = None, score_cast_func: Callable[[Any], Any] = float
    ) -> Scan[Any]:
        """Go through all members of a sorted set, as pairs of member and score."""
        client: Any = self
        return Scan(lambda cursor: client.zscan(name, cursor, match, count, score_cast_func))
