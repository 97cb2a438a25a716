# mypy: disable-error-code="unused-awaitable, attr-defined"
"""A client of a real cluster of six nodes, while slots move, masters change and die."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import trio
from redis.exceptions import MovedError, RedisError, ResponseError, TryAgainError

from tests.redis.resharding import Move, moving
from trio_orchestrator import Instrument
from trio_orchestrator.redis.cluster import RedisCluster
from trio_orchestrator.redis.cluster_opening import open_redis_cluster
from trio_orchestrator.redis.error import CallTimeoutError, CrossSlotError, LinkError, RefusedCommandError
from trio_orchestrator.redis.slot import slot_of
from trio_orchestrator.redis.subscription import Gap
from trio_orchestrator.redis_event import RedisFailover
from trio_orchestrator.testing.cluster import RedisClusterServers
from trio_orchestrator.testing.server import RedisServer, free_ports

BOUND = 5.0


async def until(condition: Callable[[], object], within: float = BOUND) -> None:
    """Wait, bounded, for what a real server does in its own time."""
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110 - it is asked, it does not tell
            await trio.sleep(0.005)


class Failovers(Instrument):
    def __init__(self) -> None:
        self.heard: list[RedisFailover] = []

    def redis_failover(self, event: RedisFailover, /) -> None:
        self.heard.append(event)


class Counters:
    """Tasks that each count up a key of their own, and know what it must be: a lost or doubled INCR is seen.

    Args:
        lost: How many of each key may be lost, since a master that is killed takes along what it has just answered.
    """

    def __init__(self, redis: RedisCluster, keys: list[str], lost: int = 0) -> None:
        self.lost = lost
        self.redis = redis
        self.keys = keys
        self.errors: list[Exception] = []
        self.done = 0
        self.slowest = 0.0

    async def run(self, key: str) -> None:
        least = most = 0  # how often it has certainly, and at most, been counted up
        for _ in count():
            began_at = trio.current_time()
            try:
                value = await self.redis.incr(key)
            except RedisError as error:
                self.errors.append(error)
                most += getattr(error, "sent", False)
                await trio.sleep(0.01)
            else:
                least, most = least + 1, most + 1
                assert least - self.lost <= value <= most, f"{key} is {value}, not within {least}..{most}"
                least = most = value
                self.done += 1
                await trio.sleep(0.001)
            self.slowest = max(self.slowest, trio.current_time() - began_at)

    def start(self, nursery: trio.Nursery) -> None:
        for key in self.keys:
            nursery.start_soon(self.run, key)


def across(cluster: RedisClusterServers, number: int) -> list[str]:
    """So many keys, of which every master has some."""
    keys = [f"key-{n}" for n in range(number)]
    assert len({cluster.master_of(key).port for key in keys}) == 3
    return keys


# ----------------------------------------------------------------------------------------------- single commands


async def test_commands_go_to_the_master_of_their_key(redis_cluster: RedisClusterServers) -> None:
    keys = across(redis_cluster, 12)
    async with open_redis_cluster(redis_cluster.url, decode_responses=True) as redis:
        for number, key in enumerate(keys):
            assert await redis.set(key, number) is True
        assert [await redis.get(key) for key in keys] == [str(number) for number in range(12)]
        assert await redis.mget_nonatomic(keys) == [str(number) for number in range(12)]
        assert all(await redis.mset_nonatomic(dict.fromkeys(keys, "x")))
        assert await redis.mget_nonatomic(*keys) == ["x"] * 12
        assert await redis.dbsize() == 12
        assert await redis.ping() is True
        roles = await redis.execute_command("ROLE", target_nodes="all")
        masters = {f"127.0.0.1:{node.port}" for node in redis_cluster.masters}
        assert masters == {where for where, (role, *_) in roles.items() if role == "master"}
        assert set(roles) - masters <= {f"127.0.0.1:{node.port}" for node in redis_cluster.replicas}
        script = redis.register_script("return redis.call('get', KEYS[1]) .. ARGV[1]")
        assert [await script(keys=[key], args=["y"]) for key in keys] == ["xy"] * 12
        assert await redis.blpop(["nothing"], timeout=0.02) is None
        assert await redis.on(key=keys[0]).get(keys[0]) == "x"
        statistics = redis.statistics()
    for key in keys:
        assert redis_cluster.master_of(key).command("GET", key) == "x"
    assert (statistics.moved, statistics.asked, statistics.retried) == (0, 0, 0)


async def test_keys_in_several_slots_are_refused_before_anything_is_sent(redis_cluster: RedisClusterServers) -> None:
    async with open_redis_cluster(redis_cluster.url) as redis:
        before = [node.link.calls for node in redis.statistics().nodes]
        with pytest.raises(CrossSlotError) as caught:
            await redis.mget("a", "b")
        assert caught.value.keys == ("a", "b")
        pipe = redis.pipeline()
        with pytest.raises(CrossSlotError):
            pipe.mset({"a": 1, "b": 2})
        assert len(pipe) == 0
        transaction = redis.pipeline(transaction=True)
        transaction.set("a", 1).set("b", 2)
        with pytest.raises(CrossSlotError, match="'a' in 15495, 'b' in 3300"):
            await transaction.execute()
        with pytest.raises(CrossSlotError):
            redis.post("DEL", "a", "b")
        with pytest.raises(CrossSlotError):
            redis.watch("a", "b")
        with pytest.raises(RefusedCommandError, match="scan_iter"):
            await redis.scan(7)
        with pytest.raises(RefusedCommandError, match="several nodes"):
            pipe.dbsize()
        assert [node.link.calls for node in redis.statistics().nodes] == before


async def test_a_posted_command_finds_its_way(redis_cluster: RedisClusterServers) -> None:
    async with open_redis_cluster(redis_cluster.url, decode_responses=True) as redis:
        with moving(redis_cluster, slot_of("{p}a")) as move:
            redis.post("SET", "{p}a", "asked")
            await until(lambda: move.target.command("CLUSTER", "GETKEYSINSLOT", move.slot, 1) == ["{p}a"])
            move.end()
            redis.post("SET", "{p}a", "moved")
            await until(lambda: redis.statistics().moved >= 1)
            assert await redis.get("{p}a") == "moved"
        assert redis.statistics().asked >= 1


# ---------------------------------------------------------------------------------------------------- migration


async def test_calls_follow_a_slot_that_moves_under_load(redis_cluster: RedisClusterServers) -> None:
    keys = [f"{{m}}{number}" for number in range(20)]
    async with open_redis_cluster(redis_cluster.url) as redis, trio.open_nursery() as nursery:
        counters = Counters(redis, keys)
        counters.start(nursery)
        await until(lambda: counters.done > 100)
        with moving(redis_cluster, slot_of("{m}0")) as move:
            for key in keys:
                move.move(key)
                await trio.sleep(0.005)
            await until(lambda: redis.statistics().asked >= 20)
            move.end()
            await until(lambda: redis.statistics().moved >= 1)
            done = counters.done
            await until(lambda: counters.done > done + 100)
        await until(lambda: redis.statistics().refreshes >= 1)
        nursery.cancel_scope.cancel()
    assert counters.errors == []
    assert redis.statistics().asked >= 1
    assert redis.statistics().moved >= 1


async def test_a_command_of_two_keys_waits_while_they_are_apart(redis_cluster: RedisClusterServers) -> None:
    async with (
        open_redis_cluster(redis_cluster.url, decode_responses=True) as redis,
        open_redis_cluster(redis_cluster.url, command_timeout=0.1) as hasty,
    ):
        await redis.mset({"{t}a": 1, "{t}b": 2})
        with moving(redis_cluster, slot_of("{t}a")) as move:
            move.move("{t}a")
            with pytest.raises((TryAgainError, CallTimeoutError)):  # the second if it is late by then
                await hasty.mget("{t}a", "{t}b")
            assert hasty.statistics().retried >= 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(redis.mset, {"{t}a": 3, "{t}b": 4})
                await until(lambda: redis.statistics().retried >= 1)
                move.move("{t}b")
            assert await redis.mget("{t}a", "{t}b") == ["3", "4"]


async def test_a_transaction_is_tried_again_when_its_slot_has_moved(redis_cluster: RedisClusterServers) -> None:
    async with (
        open_redis_cluster(redis_cluster.url, decode_responses=True) as redis,
        open_redis_cluster(redis_cluster.url, command_timeout=0.1) as hasty,
    ):
        await redis.mset({"{e}a": 1, "{e}b": 1})
        results: list[list[int]] = []

        async def transact() -> None:
            results.append(await redis.pipeline(transaction=True).incr("{e}a").incr("{e}b").execute())

        with moving(redis_cluster, slot_of("{e}a")) as move:
            move.move("{e}a")
            with pytest.raises((ResponseError, CallTimeoutError)):
                await hasty.pipeline(transaction=True).incr("{e}a").incr("{e}b").execute()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(transact)
                await until(lambda: redis.statistics().retried >= 2)
                move.move_all()
                move.end()
            assert results == [[2, 2]]
            assert redis.statistics().moved >= 1


async def test_one_who_watches_is_told_that_the_slot_moved(redis_cluster: RedisClusterServers) -> None:
    async with open_redis_cluster(redis_cluster.url) as redis:

        async def bump(tx: object) -> None:
            value = int(await tx.get("{w}a") or 0)
            tx.multi()
            tx.set("{w}a", value + 1)

        assert await redis.transaction(bump, "{w}a") == [True]
        async with redis.watch("{w}a") as tx:
            with moving(redis_cluster, slot_of("{w}a")) as move:
                move.move_all()
                move.end()
                with pytest.raises(MovedError):
                    await tx.get("{w}a")
        assert await redis.get("{w}a") == b"1"


# ----------------------------------------------------------------------------------------------- many commands


async def test_a_pipeline_over_all_nodes_answers_in_order(redis_cluster: RedisClusterServers) -> None:
    keys = across(redis_cluster, 300)
    async with open_redis_cluster(redis_cluster.url, decode_responses=True) as redis:
        await redis.set("list", "not a list")
        before = sum(node.link.calls for node in redis.statistics().nodes)
        pipe: Any = redis.pipeline()
        for number, key in enumerate(keys):
            pipe.set(key, number)
            pipe.incr(key)
        pipe.lpush("list", 1)
        *results, refused = await pipe.execute(raise_on_error=False)
        assert results == [value for number in range(300) for value in (True, number + 1)]
        assert isinstance(refused, ResponseError)
        assert sum(node.link.calls for node in redis.statistics().nodes) == before + 3
        script = redis.register_script("return KEYS[1]")
        for key in keys[:20]:
            await script(keys=[key], client=pipe)
        assert await pipe.execute() == keys[:20]


async def test_a_pipeline_follows_what_moves(redis_cluster: RedisClusterServers) -> None:
    async with open_redis_cluster(redis_cluster.url, decode_responses=True) as redis:
        await redis.mset({"{q}a": 1, "{q}b": 2, "{q}c": 3})
        script = redis.register_script("return redis.call('incr', KEYS[1])")
        with moving(redis_cluster, slot_of("{q}a")) as move:
            move.move("{q}a", "{q}c")
            pipe = redis.pipeline()
            pipe.get("{q}b").get("{q}a").mget("{q}a", "{q}c").incr("{q}a").get("elsewhere")
            await script(keys=["{q}a"], client=pipe)
            assert await pipe.execute() == ["2", "1", ["1", "3"], 2, None, 3]
            assert redis.statistics().asked == 4
            move.move_all()
            move.end()
            pipe.append("{q}a", "x").append("{q}a", "y").get("{q}a").get("{q}b").get("elsewhere")
            assert await pipe.execute() == [2, 3, "3xy", "2", None]
            assert redis.statistics().moved >= 1


async def test_scan_goes_through_all_nodes(redis_cluster: RedisClusterServers) -> None:
    keys = across(redis_cluster, 500)
    async with open_redis_cluster(redis_cluster.url, decode_responses=True) as redis:
        await redis.mset_nonatomic(dict.fromkeys(keys, 1))
        found = [key async for key in redis.scan_iter("key-*", count=50)]
        assert sorted(found) == sorted(keys)
        cursors: Any = (await redis.scan())[0]
        assert set(cursors) == set(redis.statistics().masters)
        here = [key async for key in redis.scan_iter(target_nodes=redis.statistics().masters[0])]
        assert 0 < len(here) < 500
        async for _key in redis.scan_iter():
            break


async def test_scan_finds_what_moves_meanwhile(redis_cluster: RedisClusterServers) -> None:
    async with open_redis_cluster(redis_cluster.url, decode_responses=True) as redis:
        masters = redis_cluster.masters
        last = max(masters, key=lambda node: redis.statistics().masters.index(f"{node.host}:{node.port}"))
        slot = next(slot for slot in (slot_of(f"key-{n}") for n in count()) if redis_cluster.master_of(slot) is last)
        moved = [key for key in (f"key-{n}" for n in range(100_000)) if slot_of(key) == slot]
        keys = {*across(redis_cluster, 300), *moved}
        await redis.mset_nonatomic(dict.fromkeys(keys, 1))
        first = next(node for node in masters if f"{node.host}:{node.port}" == redis.statistics().masters[0])
        found: list[str] = []
        theirs = {key for key in keys if redis_cluster.master_of(slot_of(key)) is last}
        async for key in redis.scan_iter(count=10):
            found.append(key)
            if redis_cluster.master_of(slot) is last and key in theirs:  # all others are done, this one has begun
                there = Move(redis_cluster, slot, first)
                there.begin()
                there.move_all()
                there.end()
                await redis.exists(moved[0])
        assert set(found) == keys
        back = Move(redis_cluster, slot, last)
        back.begin()
        back.move_all()
        back.end()


# --------------------------------------------------------------------------------------------- publish, subscribe


async def test_messages_are_heard_from_all_nodes(redis_cluster: RedisClusterServers) -> None:
    async with (
        open_redis_cluster(redis_cluster.url, decode_responses=True) as redis,
        redis.pubsub() as sub,
        redis.pubsub(shared=True) as other,
    ):
        await sub.subscribe("news")
        await other.psubscribe("n*")
        for node in redis_cluster.nodes:
            node.command("PUBLISH", "news", node.port)
        heard = {(await sub.receive()).data for _ in redis_cluster.nodes}
        assert heard == {str(node.port) for node in redis_cluster.nodes}
        assert {(await other.receive()).data for _ in redis_cluster.nodes} == heard


async def test_shard_channels_are_heard_where_their_slot_is(redis_cluster: RedisClusterServers) -> None:
    channels = across(redis_cluster, 6)
    async with (
        open_redis_cluster(redis_cluster.url, decode_responses=True) as redis,
        redis.pubsub(gaps=True) as sub,
    ):
        await sub.ssubscribe(*channels)
        for channel in channels:
            assert await redis.spublish(channel, "here") == 1
            message = await sub.receive()
            assert (message.channel, message.data) == (channel, "here")  # type: ignore[union-attr]
        with moving(redis_cluster, slot_of(channels[0])) as move:
            move.move_all()
            move.end()
            assert isinstance(await sub.receive(), Gap)
            assert await redis.spublish(channels[0], "there") == 1
            assert (await sub.receive()).data == "there"  # type: ignore[union-attr]
            assert redis_cluster.master_of(channels[0]) is move.target
        assert isinstance(await sub.receive(), Gap)


# ---------------------------------------------------------------------------------------------------- replicas


async def test_reads_go_to_replicas_if_that_is_chosen(redis_cluster: RedisClusterServers) -> None:
    keys = across(redis_cluster, 30)
    for key in keys:
        redis_cluster.master_of(key).command("SET", key, "0")
    await until(lambda: str(redis_cluster.nodes[0].command("CLUSTER", "SHARDS")).count("'online'") == 6)
    async with open_redis_cluster(redis_cluster.url, read_from="replica", decode_responses=True) as redis:
        await redis.mset_nonatomic(dict.fromkeys(keys, "1"))
        assert await redis.mget_nonatomic(keys) == ["1"] * 30
        await until_replicated(redis_cluster)
        for key in keys:  # the first read of a replica still goes to the master
            assert await redis.get(key) == "1"
        await until(lambda: sum(node.reads and node.link.connected for node in redis.statistics().nodes) == 3)
        before = {node.address: node.link.calls for node in redis.statistics().nodes if not node.reads}
        for key in keys:
            assert await redis.get(key) == "1"
        after = {node.address: node.link.calls for node in redis.statistics().nodes if not node.reads}
        assert after == before
        replicas = redis_cluster.replicas
        replicas[0].kill()
        for key in keys:  # its master answers instead
            assert await redis.get(key) == "1"
        assert redis.statistics().moved == 0


async def until_replicated(cluster: RedisClusterServers) -> None:
    pairs = [(master, cluster.replicas_of(master)[0]) for master in cluster.masters]
    await until(
        lambda: all(
            master.info("replication")["master_repl_offset"] == replica.info("replication")["slave_repl_offset"]
            for master, replica in pairs
        )
    )


# ---------------------------------------------------------------------------------------------------- failover


async def test_a_failover_under_load_gives_no_wrong_answer(
    redis_cluster: RedisClusterServers, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = across(redis_cluster, 20)
    heard = Failovers()
    async with (
        open_redis_cluster(redis_cluster.url, instruments=[heard]) as redis,
        trio.open_nursery() as nursery,
    ):
        counters = Counters(redis, keys)
        counters.start(nursery)
        await until(lambda: counters.done > 100)
        old = redis_cluster.master_of(keys[0])
        (new,) = redis_cluster.replicas_of(old)
        assert new.command("CLUSTER", "FAILOVER") == "OK"
        await until(lambda: redis.statistics().failovers == 1)
        done = counters.done
        await until(lambda: counters.done > done + 200)
        nursery.cancel_scope.cancel()
    with capsys.disabled():
        errors, slowest = len(counters.errors), counters.slowest * 1000
        print(f"\nCLUSTER FAILOVER: {counters.done} answers, {errors} errors, slowest {slowest:.0f} ms")
    assert [(event.old, event.new) for event in heard.heard] == [(f"{old.host}:{old.port}", f"{new.host}:{new.port}")]
    assert counters.errors == []


async def test_a_killed_master_is_followed_by_its_replica(
    redis_cluster: RedisClusterServers, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = across(redis_cluster, 20)
    async with (
        open_redis_cluster(redis_cluster.url, command_timeout=4) as redis,
        trio.open_nursery() as nursery,
    ):
        counters = Counters(redis, keys, lost=1)
        counters.start(nursery)
        await until(lambda: counters.done > 100)
        redis_cluster.master_of(keys[0]).kill()
        killed_at = trio.current_time()
        await until(lambda: redis.statistics().failovers == 1)
        after = trio.current_time() - killed_at
        done = counters.done
        await until(lambda: counters.done > done + 200)
        nursery.cancel_scope.cancel()
    with capsys.disabled():
        errors, times = len(counters.errors), f"followed after {after:.2f} s, slowest {counters.slowest:.2f} s"
        print(f"\nSIGKILL: {counters.done} answers, {errors} errors, {times}")
    assert all(isinstance(error, LinkError) and error.sent for error in counters.errors)
    assert len(counters.errors) <= 20


# ---------------------------------------------------------------------------------------------------- its block


async def test_without_any_node_the_error_names_all_of_them() -> None:
    ports = free_ports(2)
    with pytest.raises(LinkError) as caught:
        async with open_redis_cluster(*(f"redis://127.0.0.1:{port}" for port in ports)):
            raise AssertionError("it must not be entered")
    for port in ports:
        assert f"127.0.0.1:{port}: " in str(caught.value)


async def test_a_single_server_is_no_cluster(clean_redis: RedisServer) -> None:
    url = clean_redis.tcp_url
    with pytest.raises(LinkError, match="cluster support disabled"):
        async with open_redis_cluster(url):
            raise AssertionError("it must not be entered")


async def test_one_of_several_urls_is_enough(redis_cluster: RedisClusterServers) -> None:
    (dead,) = free_ports(1)
    async with open_redis_cluster(f"redis://127.0.0.1:{dead}", redis_cluster.url) as redis:
        assert await redis.ping() is True
        assert f"127.0.0.1:{dead}" not in {node.address for node in redis.statistics().nodes}


async def test_nothing_outlives_the_block(redis_cluster: RedisClusterServers) -> None:
    def clients() -> int:
        return sum(int(node.info("clients")["connected_clients"]) for node in redis_cluster.nodes)

    def tasks() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    connected, living = clients(), tasks()
    async with open_redis_cluster(redis_cluster.url, read_from="any") as redis:
        for key in across(redis_cluster, 12):
            await redis.get(key)
            redis.post("SET", key, "posted")
        assert tasks() > living
    assert tasks() == living
    assert sum(int(node.command("DBSIZE")) for node in redis_cluster.masters) == 12
    await until(lambda: clients() <= connected)
    with pytest.raises(trio.ClosedResourceError):
        await redis.get("a")
    with pytest.raises(trio.ClosedResourceError):
        redis.post("SET", "a", 1)


async def test_what_is_cancelled_from_above_can_still_speak(redis_cluster: RedisClusterServers) -> None:
    with trio.CancelScope() as scope:
        async with open_redis_cluster(redis_cluster.url) as redis:
            await redis.set("held", 1)
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    assert await redis.delete("held") == 1
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["redis://h/1"], {}, "db must be 0"),
        (["redis://h"], {"db": 2}, "db must be 0"),
        (["unix:///tmp/x"], {}, "url must be redis://"),
        (["redis://h", "http://x"], {}, "url must begin with"),
        (["redis://h"], {"read_from": "nearest"}, "read_from must be one of"),
    ],
)
def test_arguments_are_checked_before_anything_is_opened(
    arguments: list[str], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        open_redis_cluster(*arguments, **options)  # type: ignore[arg-type]


async def test_a_node_is_named_by_one_of_three(redis_cluster: RedisClusterServers) -> None:
    async with open_redis_cluster(redis_cluster.url) as redis:
        for wrong in ({}, {"key": "a", "slot": 1}, {"slot": 16384}, {"address": "nowhere:1"}):
            with pytest.raises(ValueError, match=r"^(key|slot|address) must be"):
                redis.on(**wrong)
        for node in redis_cluster.masters:
            found = await redis.on(address=f"{node.host}:{node.port}").info("server")
            assert found["tcp_port"] == node.port
