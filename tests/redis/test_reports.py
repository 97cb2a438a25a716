# mypy: disable-error-code="attr-defined"
"""What went wrong in other clients, by public reports: calls that were given up, connections that were lost."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from redis.exceptions import ReadOnlyError, ResponseError

from tests.redis.scripted import Command, ScriptedServer, open_client, open_scripted, virtual
from tests.redis.scripted_commands import Commands, teach
from trio_orchestrator.redis import CallTimeoutError, LinkError, Message, Redis
from trio_orchestrator.redis.subscription import Gap


@asynccontextmanager
async def opened(**options: Any) -> AsyncGenerator[tuple[ScriptedServer, Commands, Redis]]:
    """Open a server that takes 0.1 s to answer, with a client."""
    async with open_scripted() as scripted:
        commands = teach(scripted)
        scripted.latency = 0.1
        async with open_client(scripted, **options) as redis:
            yield scripted, commands, redis


def leased(redis: Redis) -> tuple[int, int]:
    """Return how many dedicated connections are in use, and how many tasks wait for one."""
    return redis._server.leases.used, redis._server.leases.waiting


MOMENTS = (0, 0.05, 0.1, 0.15)

# ------------------------------------------------------------------------------------------- cancelled calls


@virtual
async def test_redis_py_2624_2641_2665_no_answer_moves_on_to_the_next_call() -> None:
    async with opened() as (scripted, _, redis):
        scripted.data.update({b"foo": b"foo", b"bar": b"bar"})
        for moment in MOMENTS:
            with trio.move_on_after(moment):
                await redis.get("foo")
            assert await redis.get("bar") == b"bar"
            with trio.move_on_after(moment):
                await redis.pipeline().get("foo").get("foo").execute()
            assert await redis.pipeline().get("bar").echo("x").execute() == [b"bar", b"x"]
        assert len(scripted.sessions) == 1, "a cancelled call costs no connection"


@virtual
async def test_redis_py_2579_no_answer_of_a_blocking_call_goes_to_the_next_on_its_connection() -> None:
    async with opened(dedicated=1) as (_, commands, redis):
        for n, moment in enumerate(MOMENTS):
            with trio.move_on_after(moment):
                await redis.blpop(["list"], timeout=1)
            async with redis.dedicated() as own:
                assert await own.echo(str(n)) == b"%d" % n
        assert commands.lists.get(b"list", []) == []


@virtual
async def test_asyncio_redis_37_a_thousand_cancelled_calls_stop_nothing() -> None:
    async with opened(max_in_flight=10) as (_, _, redis):
        for _ in range(100):
            with trio.move_on_after(0.01):
                async with trio.open_nursery() as nursery:
                    for n in range(10):
                        nursery.start_soon(redis.echo, str(n))
        assert await redis.echo("mine") == b"mine"
        assert redis.statistics().in_flight == redis.statistics().queued == redis.statistics().waiting == 0
        assert redis._link.outbox.used == 0


@virtual
async def test_coredis_317_a_cancelled_call_fails_no_other_on_the_same_connection() -> None:
    async with opened() as (scripted, _, redis):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    inner.start_soon(redis.get, "key")
                    nursery.start_soon(redis.set, "key", "value")
                    await trio.sleep(0.05)
                    scope.cancel()
        assert scripted.data == {b"key": b"value"}
        assert len(scripted.sessions) == 1


@virtual
async def test_redis_py_4121_4123_a_cancelled_reset_keeps_no_connection() -> None:
    async with opened(dedicated=1) as (_, commands, redis):
        for moment in MOMENTS:
            with trio.move_on_after(moment + 0.2):
                async with redis.watch("key") as tx:
                    await tx.get("key")
                    await tx.reset()
            assert leased(redis) == (0, 0)
            async with redis.dedicated() as own:
                assert await own.echo("x") == b"x"
        await trio.sleep(1)
        assert commands.watching() == 0


@virtual
async def test_redis_py_3847_3900_a_lock_is_given_back_by_whoever_is_cancelled() -> None:
    for moment in (0, 0.05, 0.1, 0.15, 0.3):
        async with opened() as (scripted, _, redis):
            with trio.move_on_after(moment):
                try:
                    await redis.set("lock", "token", nx=True)
                    await trio.sleep(0.1)
                finally:
                    redis.post("DEL", "lock")
            await trio.sleep(1)
            assert scripted.data == {}


@virtual
async def test_radix_344_sage_152_cancelled_blocking_calls_give_their_places_back() -> None:
    async with opened(dedicated=2) as (_, _, redis):
        for _ in range(10):
            with trio.move_on_after(1):
                await redis.blpop(["list"], timeout=0)
            assert leased(redis) == (0, 0)
        assert await redis.blpop(["list"], timeout=1) is None


@virtual
async def test_glide_6794_7000_aioredis_59_an_abandoned_blocking_call_takes_nothing() -> None:
    async with opened() as (_, commands, redis):
        with trio.move_on_after(1):
            await redis.blpop(["queue"], timeout=0)
        async with redis.dedicated() as own:
            with trio.move_on_after(1):
                await own.blpop(["queue"], timeout=0)
        await redis.lpush("queue", "element")
        assert commands.lists[b"queue"] == [b"element"]
        assert await redis.blpop(["queue"], timeout=1) == (b"queue", b"element")


@virtual
async def test_ioredis_1630_a_call_that_blocks_on_purpose_is_not_late() -> None:
    async with opened(command_timeout=0.5) as (_, _, redis):
        began_at = trio.current_time()
        assert await redis.blpop(["list"], timeout=5) is None
        assert 5 <= trio.current_time() - began_at < 5.5


@virtual
async def test_redis_py_3056_tasks_that_want_few_connections_and_give_up_do_not_lock_each_other_out() -> None:
    async with opened(dedicated=2) as (_, _, redis):

        async def use(patience: float) -> None:
            with trio.move_on_after(patience):
                async with redis.dedicated() as own:
                    await own.echo("x")

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for n in range(100):
                    nursery.start_soon(use, n % 11 / 7)
        assert leased(redis) == (0, 0)
        assert await redis.dedicated().__aenter__() is not None


# ---------------------------------------------------------------------------------------------- late answers


@virtual
async def test_redis_py_4283_replies_that_come_after_the_time_out_are_nobodys() -> None:
    async with opened(command_timeout=1, silent_after=9) as (scripted, _, redis):
        scripted.data.update({b"hash": b"of the hash", b"ttl": b"7"})
        scripted.latency = 1.5
        with pytest.raises(CallTimeoutError):
            await redis.pipeline().get("hash").get("ttl").execute()
        scripted.latency = 0
        assert await redis.pipeline().get("ttl").get("hash").execute() == [b"7", b"of the hash"]
        assert await redis.get("ttl") == b"7"


@virtual
async def test_ioredis_2193_a_call_in_flight_ends_when_its_connection_does() -> None:
    async with opened() as (scripted, _, redis):

        async def kill() -> None:
            await trio.sleep(0.5)
            scripted.kill()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            with pytest.raises(LinkError) as caught:
                await redis.blpop(["list"], timeout=30)
        assert caught.value.sent
        assert await redis.echo("x") == b"x"


@virtual
async def test_ioredis_42_nothing_is_sent_again_before_the_database_is_chosen() -> None:
    async with open_scripted() as scripted:
        teach(scripted)
        lost = [True]
        scripted.kill_before = lambda words: words[0] == b"GET" and bool(lost) and lost.pop()
        async with open_client(scripted, database=1) as redis:
            assert await redis.get("key") is None
        session = scripted.session
        assert session.number == 1
        said = [one.words[0] for one in scripted.log if one.session == 1]
        assert said.index(b"SELECT") < said.index(b"GET")
        assert session.database == 1


@virtual
async def test_go_redis_1737_connections_that_died_in_the_pool_cost_nobody_a_call() -> None:
    async with opened(dedicated=5) as (scripted, _, redis):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(redis.execute_command, "BLPOP", "list", "1")
        assert len(scripted.sessions) == 6
        scripted.kill()
        await trio.lowlevel.checkpoint()
        assert await redis.blpop(["list"], timeout=1) is None
        assert await redis.echo("x") == b"x"


@virtual
async def test_node_redis_932_1039_ioredis_76_calls_do_not_pile_up_while_the_server_is_gone() -> None:
    async with opened(max_in_flight=10, command_timeout=2) as (scripted, _, redis):
        scripted.down = ConnectionRefusedError()
        scripted.kill()
        await trio.sleep(1)

        async def call() -> None:
            with pytest.raises(CallTimeoutError) as caught:
                await redis.get("key")
            assert not caught.value.sent

        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(call)
            await trio.sleep(1)
            assert redis.statistics().queued <= 10
        scripted.down = None
        await trio.sleep(2)
        assert scripted.ran("GET") == []
        assert redis._link.outbox.used == redis.statistics().waiting == 0


@virtual
async def test_ioredis_1318_a_connection_that_is_half_open_is_replaced() -> None:
    async with opened(command_timeout=9, silent_after=2) as (scripted, _, redis):
        scripted.session.stall()
        began_at = trio.current_time()
        assert await redis.get("key") is None
        assert trio.current_time() - began_at < 4
        assert len(scripted.sessions) == 2


# --------------------------------------------------------------------------------------------- other servers


@virtual
async def test_redis_py_4089_a_server_without_hello_is_refused_at_once_and_says_so() -> None:
    async with open_scripted() as scripted:
        scripted.refuse = lambda words: "ERR unknown command 'HELLO'" if words[0] == b"HELLO" else None
        with pytest.raises(ResponseError, match="unknown command 'HELLO'"):
            async with open_client(scripted, wait=60):
                raise AssertionError
        assert trio.current_time() == 0
        assert len(scripted.sessions) == 1


def read_only(scripted: ScriptedServer, times: float) -> list[Command]:
    """Have a server refuse so many writes; return the list of what it refuses."""
    refused: list[Command] = []

    def refuse(words: Command) -> str | None:
        if words[0] not in (b"SET", b"BLPOP") or len(refused) >= times:
            return None
        refused.append(words)
        return "READONLY You can't write against a read only replica."

    scripted.refuse = refuse
    return refused


@virtual
async def test_ioredis_144_node_redis_1050_redis_client_64_a_replicas_refusal_has_the_master_looked_for() -> None:
    async with opened() as (scripted, _, redis):
        for call in (redis.set("key", "value"), redis.blpop(["list"], timeout=1)):
            connections = len(scripted.sessions)
            refused = read_only(scripted, 1)
            assert await call in (True, None)
            assert len(refused) == 1
            await trio.sleep(2)
            assert len(scripted.sessions) > connections
        refused = read_only(scripted, math.inf)
        with pytest.raises(ReadOnlyError):
            await redis.set("key", "value")
        assert len(refused) == 2


@virtual
async def test_jgaskins_75_a_block_that_raises_leaves_no_watch_to_the_next() -> None:
    async with opened(dedicated=1) as (scripted, _, redis):
        with pytest.raises(ValueError, match="something"):
            async with redis.watch("sessions"):
                raise ValueError("something")
        scripted.data[b"sessions"] = b"105"
        async with redis.watch("other") as tx:
            tx.multi()
            await tx.set("mine", 1)
            assert await tx.execute() == [True]
        assert len(scripted.sessions) == 2, "the connection is used again"


# ------------------------------------------------------------------------------------------------ messages


@virtual
async def test_ioredis_85_subscriptions_outlive_attempts_to_connect_that_fail() -> None:
    async with opened() as (scripted, _, redis), redis.pubsub() as sub:
        await sub.subscribe("channel")
        scripted.down = ConnectionRefusedError()
        scripted.kill()
        await trio.sleep(5)
        scripted.down = None
        await trio.sleep(2)
        assert scripted.publish(b"channel", b"data") == 1
        assert await sub.receive() == Message(b"channel", b"data")


@virtual
async def test_stackexchange_517_a_second_loss_amid_resubscribing_forgets_no_channel() -> None:
    async with opened() as (scripted, _, redis), redis.pubsub() as sub:
        channels = [f"channel {n}" for n in range(1000)]
        await sub.subscribe(*channels)
        for moment in (0.05, 0.15, 0.25):
            scripted.kill()
            await trio.sleep(1 + moment)
        await trio.sleep(5)
        assert sum(scripted.publish(channel.encode(), b"") for channel in channels) == 1000


@virtual
async def test_go_redis_1070_it_is_told_when_all_is_subscribed_to_again() -> None:
    async with opened() as (scripted, _, redis), redis.pubsub(gaps=True) as sub:
        await sub.subscribe("changed")
        scripted.kill()
        scripted.data[b"config"] = b"new"  # and nobody hears of it
        assert isinstance(await sub.receive(), Gap)
        assert await redis.get("config") == b"new"
        assert scripted.publish(b"changed", b"") == 1
