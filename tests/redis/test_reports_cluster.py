# mypy: disable-error-code="attr-defined"
"""What went wrong in other clients of clusters and Sentinels, by public reports."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from redis.exceptions import MovedError

from tests.redis.scripted import Push, ScriptedServer, open_scripted, virtual
from tests.redis.scripted_cluster import ScriptedCluster, View, open_scripted_cluster
from tests.redis.scripted_commands import listening, teach
from trio_orchestrator.redis import CallTimeoutError, Message, RedisCluster, open_sentinel
from trio_orchestrator.redis.slot import SLOTS, slot_of

HALF = SLOTS // 2
HALVES: View = [(0, HALF - 1, 0, ()), (HALF, SLOTS - 1, 1, ())]
LOW, HIGH = "b", "a"  # slots 3300 and 15495
MOMENTS = (0, 0.05, 0.1, 0.15)


@asynccontextmanager
async def opened(**options: Any) -> AsyncGenerator[tuple[ScriptedCluster, RedisCluster]]:
    """Open a cluster of two that take 0.1 s to answer, with a client."""
    async with open_scripted_cluster(2) as cluster:
        cluster.see(HALVES)
        for server in cluster.servers:
            server.latency = 0.1
            teach(server)
        async with cluster.open(**options) as redis:
            yield cluster, redis


@virtual
async def test_redis_py_2632_no_answer_moves_on_to_the_next_call_to_a_node() -> None:
    async with opened() as (cluster, redis):
        for server in cluster.servers:
            server.data.update({key.encode(): key.encode() for key in (LOW, HIGH, "{b}foo", "{a}foo")})
        for moment in MOMENTS:
            with trio.move_on_after(moment):
                await redis.get("{b}foo")
            assert await redis.get(LOW) == b"b"
            with trio.move_on_after(moment):
                await redis.pipeline().get("{b}foo").get("{a}foo").execute()
            assert await redis.pipeline().get(HIGH).get(LOW).execute() == [b"a", b"b"]
        assert [len(server.sessions) for server in cluster.servers] == [1, 1]


@virtual
async def test_redis_py_4283_late_replies_to_a_pipeline_are_not_those_of_the_next() -> None:
    async with opened(command_timeout=1, silent_after=9) as (cluster, redis):
        low = cluster.servers[0]
        low.data.update({b"{b}hash": b"of the hash", b"{b}ttl": b"7"})
        low.latency = 1.5
        with pytest.raises(CallTimeoutError):
            await redis.pipeline().get("{b}hash").get("{b}ttl").execute()
        low.latency = 0
        assert await redis.pipeline().get("{b}ttl").get("{b}hash").execute() == [b"7", b"of the hash"]


@virtual
async def test_go_redis_3190_calls_that_are_cancelled_speak_against_no_node() -> None:
    async with opened() as (cluster, redis):
        for _ in range(20):
            with trio.move_on_after(0.05):
                await redis.get(LOW)
            with trio.move_on_after(0.05):
                await redis.pipeline().get(LOW).get(HIGH).execute()
        assert redis.statistics().refreshes == redis.statistics().retried == 0
        assert [len(server.sessions) for server in cluster.servers] == [1, 1]
        assert await redis.get(LOW) is None


# -------------------------------------------------------------------------------------------- redirections


@virtual
async def test_ioredis_390_1587_valkey_go_92_nodes_that_send_a_call_to_each_other_get_it_a_few_times() -> None:
    async with opened(command_timeout=2) as (cluster, redis):
        low, high = cluster.servers
        low.refuse = lambda words: f"MOVED {slot_of(LOW)} cluster:7001" if words[0] == b"GET" else None
        high.refuse = lambda words: f"MOVED {slot_of(LOW)} cluster:7000" if words[0] == b"GET" else None
        began_at = trio.current_time()
        with pytest.raises((MovedError, CallTimeoutError)):
            await redis.get(LOW)
        assert 1.5 < trio.current_time() - began_at <= 2
        assert 6 <= sum(words[0] == b"GET" for server in cluster.servers for words in server.seen) < 16
        low.refuse = high.refuse = lambda words: None
        assert await redis.get(LOW) is None


@virtual
async def test_stackexchange_2990_a_node_that_names_itself_is_asked_again() -> None:
    async with opened() as (cluster, redis):
        low, refusals = cluster.servers[0], [1, 2]
        low.refuse = lambda words: (
            f"MOVED {slot_of(LOW)} cluster:7000" if words[0] == b"SET" and refusals and refusals.pop() else None
        )
        assert await redis.set(LOW, "value") is True
        assert low.data == {b"b": b"value"}


# ---------------------------------------------------------------------------------------------- shard channels


def owner(server: ScriptedServer, *channels: str) -> None:
    """Have a server take subscriptions to these shard channels only, and those of one slot together."""

    def refuse(words: tuple[bytes, ...]) -> str | None:
        if words[0] != b"SSUBSCRIBE":
            return None
        if len({slot_of(word) for word in words[1:]}) > 1:
            return "CROSSSLOT Keys in request don't hash to the same slot"
        return None if words[1].decode() in channels else f"MOVED {slot_of(words[1])} cluster:7001"

    server.refuse = refuse


@virtual
async def test_node_redis_2902_go_redis_3806_shard_channels_are_subscribed_to_again_at_their_owners() -> None:
    async with opened() as (cluster, redis), redis.pubsub() as sub:
        low, high = cluster.servers
        owner(low, "{b}1", "{b}2", "c")
        owner(high, "a")
        assert slot_of("c") < HALF
        await sub.ssubscribe("{b}1", "{b}2", "c", "a")
        for server in cluster.servers:
            server.kill()
        await trio.sleep(3)
        assert all(server.ran("SSUBSCRIBE") for server in cluster.servers)
        for channel in ("{b}1", "{b}2", "c", "a"):
            assert await redis.execute_command("SPUBLISH", channel, "data") == 1
            assert await sub.receive() == Message(channel.encode(), b"data", None, "smessage")


@virtual
async def test_node_redis_3311_jedis_3548_rueidis_55_a_channel_follows_its_slot() -> None:
    async with opened() as (cluster, redis), redis.pubsub() as sub:
        low, high = cluster.servers
        owner(low, LOW)
        owner(high)
        await sub.ssubscribe(LOW)
        cluster.see([(0, SLOTS - 1, 1, ())])
        owner(low)
        owner(high, LOW)
        (session,) = [one for one in low.sessions if one.topics]
        session.topics.clear()
        session.say(Push([b"sunsubscribe", LOW.encode(), 0]))
        await trio.sleep(3)
        assert await redis.execute_command("SPUBLISH", LOW, "data") == 1
        assert await sub.receive() == Message(b"b", b"data", None, "smessage")


# ------------------------------------------------------------------------------------------------ Sentinels


@virtual
async def test_redis_py_3867_valkey_py_250_go_redis_889_a_switch_is_heard_and_the_old_master_left() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(open_scripted()) for _ in range(3)]
        ports = [(await stack.enter_async_context(listening(server)))[1] for server in servers]
        sentinel = servers[0]
        facts = {b"ip": b"127.0.0.1", b"port": b"%d" % ports[1], b"flags": b"master", b"config-epoch": b"1"}

        def answer(_session: object, what: bytes, *_name: bytes) -> Any:
            known = {b"MASTER": dict(facts), b"GET-MASTER-ADDR-BY-NAME": [facts[b"ip"], facts[b"port"]]}
            return known.get(what, [])

        sentinel._do_sentinel = answer
        async with open_sentinel("mymaster", [f"redis://127.0.0.1:{ports[0]}"]) as redis:
            await redis.set("key", 0)
            for number, (old, new) in enumerate([(1, 2), (2, 1), (1, 2)], 1):
                own = await stack.enter_async_context(redis.dedicated())
                assert await own.get("key") is not None
                facts |= {b"port": b"%d" % ports[new], b"config-epoch": b"%d" % (number + 1)}
                told = f"mymaster 127.0.0.1 {ports[old]} 127.0.0.1 {ports[new]}"
                assert sentinel.publish(b"+switch-master", told.encode()) == 1
                await trio.sleep(1)
                assert await redis.set("key", number) is True  # though the old one would still take it
                assert servers[new].data[b"key"] == b"%d" % number
                assert not any(session.alive for session in servers[old].sessions)
