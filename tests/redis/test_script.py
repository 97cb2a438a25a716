# mypy: disable-error-code="unused-awaitable, comparison-overlap"
"""Scripts by their hash: what is sent, and what happens when a server does not have one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import trio
from redis.exceptions import ResponseError

from tests.redis.peer import forget, open_peer
from tests.redis.scripted import open_client, open_scripted
from trio_orchestrator.redis import open_redis
from trio_orchestrator.redis.error import LinkError
from trio_orchestrator.redis.script import Script
from trio_orchestrator.testing.server import RedisServer

TEXT = "return {KEYS[1], ARGV[1], redis.call('EXISTS', KEYS[1])}"


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    redis_server.command("SCRIPT", "FLUSH")
    forget(redis_server, "sc:")
    yield redis_server
    forget(redis_server, "sc:")


def calls_of(server: RedisServer, name: str) -> int:
    stats = server.info("commandstats").get(f"cmdstat_{name}", "calls=0,")
    return int(stats.split("calls=")[1].split(",")[0])


async def test_the_text_is_sent_once(server: RedisServer) -> None:
    server.command("CONFIG", "RESETSTAT")
    async with open_redis(server.url) as redis:
        script = redis.register_script(TEXT)
        assert redis.statistics().calls == 0
        for _ in range(3):
            assert await script(keys=["sc:a"], args=[1]) == [b"sc:a", b"1", 0]
        assert (calls_of(server, "evalsha"), calls_of(server, "eval"), calls_of(server, "script|load")) == (3, 1, 0)
        server.command("SCRIPT", "FLUSH")
        assert await script(["sc:a"], ["x"]) == [b"sc:a", b"x", 0]


async def test_the_hash_and_the_answers_are_those_of_redis_py(server: RedisServer) -> None:
    for text in (TEXT, "return '\u00e4'", b"return 1"):
        with open_peer(server) as peer:
            theirs = peer.register_script(text)
            expected = theirs(keys=["sc:a"], args=["b"])
        async with open_redis(server.url) as redis:
            ours = redis.register_script(text)
            assert (ours.sha, ours.script, ours.registered_client) == (theirs.sha, text, redis)
            assert await ours(keys=["sc:a"], args=["b"]) == expected
            assert repr(ours) == f"<Script {ours.sha}>"


async def test_a_script_in_the_encoding_of_the_client(server: RedisServer) -> None:
    async with open_redis(server.url, encoding="latin-1", decode_responses=True) as redis:
        script = redis.register_script("return '\u00e4'")
        assert script.sha == hashlib.sha1("return '\u00e4'".encode("latin-1")).hexdigest()
        assert [await script(), await script()] == ["\u00e4", "\u00e4"]


async def test_errors_are_bare(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        with pytest.raises(ResponseError, match="Error compiling") as caught:
            await redis.register_script("return )")()
        assert caught.value.__context__ is None
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await redis.set("sc:a", 1)
            await redis.register_script("return redis.call('LPUSH', KEYS[1], 1)")(["sc:a"])


async def test_readonly_is_held_to(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        assert await redis.register_script(TEXT)(["sc:a"], [1], readonly=True) == [b"sc:a", b"1", 0]
        with pytest.raises(ResponseError, match="Write commands are not allowed"):
            await redis.register_script("return redis.call('SET', KEYS[1], 1)")(["sc:a"], readonly=True)


async def test_another_client_executes_it(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, open_redis(server.url, decode_responses=True) as other:
        script = redis.register_script(TEXT)
        assert await script(["sc:a"], [1], other) == ["sc:a", "1", 0]
        async with redis.dedicated() as own, redis.watch("sc:a") as tx:
            assert await script(["sc:a"], [1], own) == [b"sc:a", b"1", 0]
            assert await script(["sc:a"], [2], tx) == [b"sc:a", b"2", 0]
            server.command("SCRIPT", "FLUSH")
            tx.multi()
            script(["sc:a"], [3], tx)
            assert await script(["sc:a"], [4], tx) is tx
            assert await tx.execute() == [[b"sc:a", b"3", 0], [b"sc:a", b"4", 0]]


@pytest.mark.parametrize(("resend", "readonly"), [(False, False), (True, False), (False, True)])
async def test_a_lost_connection(resend: bool, readonly: bool, autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        name = b"EVALSHA_RO" if readonly else b"EVALSHA"
        lost = iter([True])
        scripted.kill_before = lambda words: words[0] == name and next(lost, False)
        script = Script(redis, "return 1")
        if resend or readonly:
            with pytest.raises(ResponseError, match="unknown command 'EVALSHA"):  # asked again, and it has no Lua
                await script(resend=resend, readonly=readonly)
            assert len([words for words in scripted.seen if words[0] == name]) == 2
        else:
            with pytest.raises(LinkError) as caught:
                await script()
            assert caught.value.sent


async def test_cancelled_it_leaves_the_link_in_step(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        script = redis.register_script("return ARGV[1]")
        for number in range(30):
            server.command("SCRIPT", "FLUSH") if number % 5 == 0 else None
            with trio.move_on_after(number * 0.00002):
                assert await script(args=[number]) == b"%d" % number
        assert await script(args=["end"]) == b"end"
        assert redis.statistics().connections == 1
