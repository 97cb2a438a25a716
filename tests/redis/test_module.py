# mypy: disable-error-code="unused-awaitable, comparison-overlap"
"""The commands of server modules: their answers, as `redis.asyncio` gives them, from a server that has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import trio

from tests.redis.scripted import ScriptedServer, open_client, open_scripted
from trio_orchestrator.redis import open_redis
from trio_orchestrator.testing.server import RedisServer


def install(scripted: ScriptedServer, replies: dict[str, Any]) -> None:
    """Have a server answer to commands that it does not know."""
    for name, reply in replies.items():
        setattr(scripted, f"_do_{name.lower()}", lambda session, *args, reply=reply: reply)


async def test_json(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as client:
        install(scripted, {"JSON.SET": "OK", "JSON.GET": b'[{"a":1}]', "JSON.TYPE": [[b"object"]], "JSON.DEL": 1})
        commands = client.json()
        assert await commands.set("k", "$", {"a": 1}) is True
        assert await commands.get("k", "$") == [{"a": 1}]
        assert await commands.type("k") == [b"object"]
        assert scripted.ran("JSON.SET") == [(b"JSON.SET", b"k", b"$", b'{"a": 1}')]
        async with client.pipeline() as pipe:
            pipe.json().set("k", "$", [])
            pipe.json().get("k", "$")
            assert await pipe.execute() == [True, [{"a": 1}]]
        with pytest.raises(NotImplementedError, match="pipeline of the client"):
            commands.pipeline()


async def test_json_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}')
    (tmp_path / "b.json").write_text("no")
    async with open_scripted() as scripted, open_client(scripted) as client:
        install(scripted, {"JSON.SET": "OK"})
        assert await client.json().set_file("k", "$", str(tmp_path / "a.json")) is True
        done = await client.json().set_path("$", str(tmp_path))
        assert done == {str(tmp_path / "a.json"): True, str(tmp_path / "b.json"): False}
        assert [words[1] for words in scripted.ran("JSON.SET")] == [b"k", str(tmp_path / "a").encode()]
        with pytest.raises(json.JSONDecodeError):
            await client.json().set_file("k", "$", str(tmp_path / "b.json"))


NAMESPACES: dict[str, Callable[[Any], Any]] = {
    "json": lambda client: client.json(),
    "ft": lambda client: client.ft("index"),
    "ts": lambda client: client.ts(),
    "bf": lambda client: client.bf(),
    "cf": lambda client: client.cf(),
    "cms": lambda client: client.cms(),
    "topk": lambda client: client.topk(),
    "tdigest": lambda client: client.tdigest(),
    "vset": lambda client: client.vset(),
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", NAMESPACES)
async def test_what_answers_go_through_is_the_same(redis_server: RedisServer, name: str, legacy: bool) -> None:
    theirs = redis.asyncio.Redis(legacy_responses=legacy)
    NAMESPACES[name](theirs)
    expected = {command: named(callback) for command, callback in theirs.response_callbacks.items()}
    async with open_redis(redis_server.url, legacy_responses=legacy) as client:
        namespace = NAMESPACES[name](client)
        assert namespace.client is client
        assert {command: named(callback) for command, callback in client._answers._callbacks.items()} == expected


def named(callback: Any) -> str:
    return getattr(callback, "__qualname__", repr(type(callback)))


async def test_suggestions_use_a_pipeline(autojump_clock: object) -> None:
    from redis.commands.search.suggestion import Suggestion

    async with open_scripted() as scripted, open_client(scripted) as client:
        install(scripted, {"FT.SUGADD": 7})
        assert await client.ft().sugadd("k", Suggestion("a"), Suggestion("b")) == 7
        assert len(scripted.ran("FT.SUGADD")) == 2
        assert client.statistics().calls == 1


async def test_a_server_without_modules_says_so(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url) as client:
        with pytest.raises(redis.exceptions.ResponseError, match=r"unknown command 'JSON\.GET'"):
            await client.json().get("k")
        await trio.lowlevel.checkpoint()
