# mypy: disable-error-code="unused-awaitable, comparison-overlap"
"""A client on a connection of its own, and the log of all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing
from redis.exceptions import DataError, WatchError

from tests.redis.peer import forget, idle, until
from tests.redis.scripted import open_client, open_scripted
from trio_orchestrator.redis import open_redis
from trio_orchestrator.redis.dedicated import DedicatedRedis
from trio_orchestrator.redis.error import CallTimeoutError, LinkError
from trio_orchestrator.testing.server import RedisServer


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    forget(redis_server, "de:")
    yield redis_server
    forget(redis_server, "de:")


async def test_it_has_all_commands_and_what_blocks(server: RedisServer) -> None:
    async with open_redis(server.url, decode_responses=True) as redis:
        async with redis.dedicated() as own:
            assert await own.set("de:a", 1) is True
            assert await own.wait(0, 10) == 0
            assert await own.blpop(["de:q"], timeout=0.01) is None
            await redis.rpush("de:q", 1)
            assert await own.blpop(["de:q"], timeout=0) == ("de:q", "1")
            assert [key async for key in own.scan_iter("de:*")] == ["de:a"]
            assert await own.keys("de:*") == ["de:a"]
            assert await own.client_id() == await own.client_id() != await redis.client_id()
        assert idle(redis) == 1


async def test_a_pipeline_on_it_may_wait_for_replicas(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, redis.dedicated() as own:
        pipe = own.pipeline()
        pipe.set("de:a", 1)
        pipe.wait(0, 10)
        pipe.blpop(["de:q"], timeout=0.01)
        assert await pipe.execute() == [True, 0, None]


async def test_a_transaction_by_hand(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, redis.dedicated() as own:
        await own.watch("de:a")
        await redis.set("de:a", 1)
        with pytest.raises(WatchError):
            await own.pipeline(transaction=True).execute_command("SET", "de:a", 2).execute()
        await own.execute_command("MULTI")
        assert await own.execute_command("GET", "de:a") == b"QUEUED"
        assert await own.execute_command("EXEC") == [b"1"]


async def test_what_the_server_waits_for_on_purpose_is_not_late(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted, command_timeout=1) as redis:
        setattr(scripted, "_do_blpop", lambda session, *args: None)
        scripted.takes_long = lambda words: 2.9 if words[0] == b"BLPOP" else 0.0
        async with redis.dedicated() as own:
            assert await own.blpop(["q"], timeout=2) is None
            pipe = own.pipeline()
            pipe.blpop(["q"], timeout=2)
            pipe.blpop(["q"], timeout=3)
            assert await pipe.execute() == [None, None]
            with pytest.raises(CallTimeoutError):
                await own.blpop(["q"], timeout=1)


@pytest.mark.parametrize("name", ["SUBSCRIBE", "SELECT", "MONITOR", "AUTH", "CLIENT REPLY", "RESET", "QUIT"])
async def test_what_not_even_it_takes(server: RedisServer, name: str) -> None:
    async with open_redis(server.url) as redis, redis.dedicated() as own:
        with pytest.raises(DataError, match=f"{name} is refused: it "):
            await own.execute_command(name, 1)
        with pytest.raises(DataError, match="is refused"):
            own.pipeline().execute_command(name, 1)


async def nothing(own: DedicatedRedis) -> None:
    await own.get("de:a")


async def stateful(own: DedicatedRedis) -> None:
    await own.execute_command("CLIENT NO-EVICT", "ON")


async def watching(own: DedicatedRedis) -> None:
    await own.watch("de:a")


async def queued(own: DedicatedRedis) -> None:
    own.pipeline().execute_command("CLIENT", "NO-TOUCH", "ON")


async def given_up(own: DedicatedRedis) -> None:
    with trio.move_on_after(0.001):
        await own.blpop(["de:q"])


async def failed(own: DedicatedRedis) -> None:
    with pytest.raises(DataError):
        await own.set("de:a", object())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("use", "kept"),
    [(nothing, 1), (failed, 1), (stateful, 0), (watching, 0), (queued, 0), (given_up, 0)],
)
async def test_the_connection_is_kept_if_it_is_as_good_as_new(
    server: RedisServer, use: Callable[[DedicatedRedis], Any], kept: int
) -> None:
    async with open_redis(server.url) as redis:
        async with redis.dedicated() as own:
            await use(own)
        assert idle(redis) == kept
        with pytest.raises(LookupError):
            async with redis.dedicated() as own:
                await use(own)
                raise LookupError
        assert idle(redis) == kept


async def test_what_was_given_up_takes_nothing(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        async with redis.dedicated() as own:
            await given_up(own)
        await until(lambda: "blocked_clients:0" in server.command("INFO", "clients"))
        await redis.rpush("de:q", 1)
        assert await redis.lrange("de:q", 0, -1) == [b"1"]


async def test_a_lost_connection_is_never_replaced(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        async with redis.dedicated() as own:
            scripted.kill_after = lambda words: words[0] == b"SET"
            with pytest.raises(LinkError) as caught:
                await own.set("a", 1)
            assert caught.value.sent
            with pytest.raises(LinkError) as caught:
                await own.pipeline().execute_command("GET", "a").execute()
            assert not caught.value.sent
        assert idle(redis) == 0
        assert await redis.get("a") == b"1"


async def test_outside_of_its_block(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        own = redis.dedicated()
        with pytest.raises(trio.ClosedResourceError):
            await own.get("de:a")
        async with own:
            pass
        with pytest.raises(trio.ClosedResourceError):
            await own.pipeline().execute_command("GET", "de:a").execute()


# ------------------------------------------------------------------------------------------------ monitor


async def test_the_log_of_all_commands(server: RedisServer) -> None:
    async with open_redis(server.url) as redis:
        async with redis.monitor() as commands:
            assert commands.__aiter__() is commands
            await redis.set("de:a", 'b "c" \u00e4')
            await redis.get("de:a")
            seen = [await anext(commands), await anext(commands)]
        assert [command["command"].partition(" ")[0] for command in seen] == ["SET", "GET"]
        assert seen[0]["command"].startswith('SET de:a b "c" ')
        assert (seen[0]["db"], seen[0]["client_type"], commands.missed) == (0, "unix", 0)
        assert idle(redis) == 0


async def test_what_nobody_takes_is_counted(server: RedisServer) -> None:
    async with open_redis(server.url) as redis, redis.monitor(buffer=2) as commands:
        for _ in range(5):
            await redis.get("de:a")
        await until(lambda: commands.missed == 3)
        assert (await anext(commands))["command"] == "GET de:a"


async def test_a_log_that_ends_says_so(autojump_clock: object) -> None:
    async with open_scripted() as scripted, open_client(scripted, command_timeout=1) as redis:
        with pytest.raises(CallTimeoutError):
            scripted.takes_long = lambda words: 2.0 if words[0] == b"MONITOR" else 0.0
            async with redis.monitor():
                raise AssertionError
        scripted.takes_long = lambda words: 0.0
        setattr(scripted, "_do_monitor", lambda session: "OK")
        async with redis.monitor() as commands:
            scripted.session.kill()
            with pytest.raises(LinkError):
                await anext(commands)
        assert idle(redis) == 0


async def test_a_log_that_is_refused(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "de-user", "on", "nopass", "+@all", "-monitor", "~*")
    try:
        async with open_redis(server.url, username="de-user", password="x") as redis:
            with pytest.raises(Exception, match="no permissions"):
                async with redis.monitor():
                    raise AssertionError
            assert idle(redis) == 0
    finally:
        server.command("ACL", "DELUSER", "de-user")
