# mypy: disable-error-code="unused-awaitable, attr-defined"
"""How a call finds its way through a cluster whose nodes say what a test has them say, on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from redis.backoff import ConstantBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)
from trio.testing import MockClock

from tests.redis.scripted import Command, ScriptedServer
from tests.redis.scripted_cluster import View, open_scripted_cluster
from trio_orchestrator.redis.error import CallTimeoutError, LinkError
from trio_orchestrator.redis.slot import SLOTS

HALF = SLOTS // 2
HALVES: View = [(0, HALF - 1, 0, ()), (HALF, SLOTS - 1, 1, ())]
LOW, HIGH = "b", "a"  # slots 3300 and 15495


def refusing(name: bytes, text: str, times: float = math.inf) -> Callable[[Command], str | None]:
    """Refuse a command so many times with an error."""
    left = times

    def refuse(words: Command) -> str | None:
        nonlocal left
        if words[0] != name or left <= 0:
            return None
        left -= 1
        return text

    return refuse


def count(server: ScriptedServer, *prefix: bytes) -> int:
    return sum(words[: len(prefix)] == prefix for words in server.seen)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("TRYAGAIN Multiple keys request during rehashing of slot", TryAgainError),
        ("CLUSTERDOWN The cluster is down", ClusterDownError),
        ("LOADING Valkey is loading the dataset in memory", BusyLoadingError),
        ("MASTERDOWN Link with MASTER is down", ClusterDownError),
    ],
)
async def test_what_may_pass_is_tried_again_until_the_time_is_over(
    autojump_clock: MockClock, text: str, kind: type[Exception]
) -> None:
    async with open_scripted_cluster(1) as cluster, cluster.open(command_timeout=2) as redis:
        (server,) = cluster.servers
        server.refuse = refusing(b"SET", text, 3)
        assert await redis.set("k", "v") is True
        assert count(server, b"SET") == 4
        server.refuse = refusing(b"SET", text)
        began_at = trio.current_time()
        with pytest.raises(kind):
            await redis.set("k", "v")
        assert 1.7 < trio.current_time() - began_at <= 2
        assert count(server, b"SET") < 30
        assert await redis.get("k") == b"v"


async def test_one_time_counts_for_the_whole_way(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(1) as cluster, cluster.open(command_timeout=2, silent_after=9) as redis:
        (server,) = cluster.servers
        began_at = trio.current_time()

        def refuse(words: Command) -> str | None:
            if words[0] == b"SET" and trio.current_time() - began_at < 1:
                return "TRYAGAIN not yet"
            server.latency = 5
            return None

        server.refuse = refuse
        with pytest.raises(CallTimeoutError) as caught:
            await redis.set("k", "v")
        assert trio.current_time() - began_at == pytest.approx(2)
        assert caught.value.sent


async def test_moved_is_followed_at_once_and_the_map_learnt_once(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(2) as cluster, cluster.open() as redis:
        first, second = cluster.servers
        first.refuse = lambda words: "MOVED 15495 cluster:7001" if words[0] == b"SET" else None
        cluster.see(HALVES)
        asked = cluster.asked
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(redis.set, HIGH, "v")
        assert trio.current_time() == began_at
        assert len(second.ran("SET", HIGH)) == 100
        await trio.sleep(1)
        assert redis.statistics().moved == 100
        assert cluster.asked - asked <= 2
        await redis.set("x", "v")  # slot 16287, which moved unheard
        assert redis.statistics().moved == 100


async def test_moved_is_remembered_before_the_map_is_learnt(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(2) as cluster, cluster.open() as redis:
        first, second = cluster.servers
        first.refuse = lambda words: "MOVED 15495 cluster:7001" if words[0] == b"SET" else None
        for server in cluster.servers:
            server._do_cluster = lambda _session, *_args: 0  # what cannot be read
        for _ in range(10):
            await redis.set(HIGH, "v")
        assert len(second.ran("SET", HIGH)) == 10
        assert redis.statistics().moved == 1


async def test_moved_in_a_circle_ends_with_the_time(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(2) as cluster, cluster.open(command_timeout=2) as redis:
        for server, other in zip(cluster.servers, (7001, 7000), strict=True):
            server.refuse = refusing(b"SET", f"MOVED 15495 cluster:{other}")
        began_at = trio.current_time()
        with pytest.raises(MovedError):
            await redis.set(HIGH, "v")
        assert 1.5 < trio.current_time() - began_at <= 2
        assert sum(count(server, b"SET") for server in cluster.servers) < 40


async def test_ask_is_one_write_among_others(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(2) as cluster:
        cluster.see(HALVES)
        async with cluster.open(decode_responses=True) as redis:
            first, second = cluster.servers
            first.refuse = lambda words: "ASK 3300 cluster:7001" if words[-1] == b"b" else None
            second.data[b"b"] = b"here"
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(redis.get, HIGH)
                    nursery.start_soon(redis.get, LOW)
            assert await redis.get(LOW) == "here"
            words = second.executed
            asking = [number for number, one in enumerate(words) if one == (b"ASKING",)]
            assert len(asking) == 51 == redis.statistics().asked
            assert all(words[number + 1] == (b"GET", b"b") for number in asking)


async def test_a_refused_write_is_sent_once_more_to_the_new_master(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(2) as cluster, cluster.open() as redis:
        first, second = cluster.servers
        first.refuse = refusing(b"SET", "READONLY You can't write against a read only replica.")
        cluster.see([(0, SLOTS - 1, 1, (0,))])
        assert await redis.set("k", "v") is True
        assert second.ran("SET") == [(b"SET", b"k", b"v")]
        assert redis.statistics().failovers == 1
        second.refuse = refusing(b"SET", "READONLY You can't write against a read only replica.")
        with pytest.raises(ReadOnlyError):
            await redis.set("k", "v")
        assert count(second, b"SET") == 3


async def test_a_sent_write_is_not_repeated_and_a_read_is(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(1) as cluster, cluster.open(command_timeout=10) as redis:
        (server,) = cluster.servers
        server.kill_after = lambda words: words[0] == b"INCR"
        with pytest.raises(LinkError) as caught:
            await redis.execute_command("INCR", "n")
        assert caught.value.sent
        assert server.data[b"n"] == b"1"
        lost = [True]
        server.kill_after = lambda words: words[0] == b"GET" and bool(lost) and lost.pop()
        assert await redis.get("n") == b"1"
        assert len(server.ran("GET")) == 2
        pipe = redis.pipeline()
        server.kill_after = lambda words: words[0] == b"INCR"
        with pytest.raises(LinkError):
            await pipe.execute_command("INCR", "n").execute()
        assert server.data[b"n"] == b"2"


async def test_what_waits_for_a_dead_master_goes_to_its_successor(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(3) as cluster:
        cluster.see(HALVES)
        async with cluster.open(command_timeout=10) as redis:
            dead, other, heir = cluster.servers
            dead.down = ConnectionRefusedError("nobody there")
            dead.kill()
            await trio.testing.wait_all_tasks_blocked()
            began_at = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(redis.set, LOW, "v")
                nursery.start_soon(redis.get, LOW)
                nursery.start_soon(redis.pipeline().set("b{b}", 1).set(HIGH, 2).execute)
                nursery.start_soon(redis.pipeline(transaction=True).set("c{b}", 1).execute)
                nursery.start_soon(redis.blpop, [LOW], 1)
                redis.post("SET", "d{b}", 1)
                await trio.sleep(3)
                heir._do_blpop = lambda _session, *_args: None
                cluster.see([(0, HALF - 1, 2, ()), (HALF, SLOTS - 1, 1, ())])
            assert 3 < trio.current_time() - began_at < 3.6
            assert {words[1] for words in heir.ran("SET")} == {b"b", b"b{b}", b"c{b}", b"d{b}"}
            assert other.ran("SET") == [(b"SET", b"a", b"2")]
            assert {node.address for node in redis.statistics().nodes} == {"cluster:7001", "cluster:7002"}


async def test_the_map_is_asked_for_as_long_as_somebody_waits(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(3) as cluster:
        cluster.see(HALVES)
        async with cluster.open(command_timeout=10, reconnect=ConstantBackoff(20)) as redis:
            dead = cluster.servers[0]
            dead.down = ConnectionRefusedError("nobody there")
            dead.kill()
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(redis.set, LOW, "v")
                await trio.sleep(3)
                cluster.see([(0, HALF - 1, 2, ()), (HALF, SLOTS - 1, 1, ())])
            assert 3 < trio.current_time() < 3.6


async def test_what_is_posted_last_is_sent_all_the_same(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(2) as cluster:
        cluster.see(HALVES)
        for server in cluster.servers:
            server.latency = 0.5
        async with cluster.open() as redis:
            for number, server in enumerate(cluster.servers):
                server.refuse = refusing(b"SET", f"ASK 3300 cluster:{7000 + 1 - number}", 1)
            redis.post("SET", LOW, 1)
            redis.post("DEL", HIGH)
        assert cluster.servers[1].ran("DEL")
        assert cluster.servers[0].seen[-2] == (b"SET", b"b", b"1")


async def test_the_map_is_kept_while_all_is_cancelled_outside(autojump_clock: MockClock) -> None:
    with trio.CancelScope() as scope:
        async with open_scripted_cluster(2) as cluster:
            with trio.CancelScope(shield=True):  # the servers are not what is to be cancelled
                inner = trio.CancelScope()
                with inner:
                    async with cluster.open() as redis:
                        inner.cancel()
                        with trio.CancelScope(shield=True):
                            await trio.sleep(1)
                            refused = refusing(b"SET", "READONLY You can't write against a read only replica.")
                            cluster.servers[0].refuse = refused
                            cluster.see([(0, SLOTS - 1, 1, (0,))])
                            assert await redis.set("k", "v") is True
                assert inner.cancelled_caught or inner.cancel_called
                assert cluster.servers[1].ran("SET")
        scope.cancel()


async def test_a_slot_that_nobody_serves_is_waited_for(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(1) as cluster:
        cluster.see([(0, HALF - 1, 0, ())])
        async with cluster.open(command_timeout=2) as redis:
            with pytest.raises(SlotNotCoveredError):
                await redis.get(HIGH)
            with pytest.raises(SlotNotCoveredError):
                await redis.pipeline().get(HIGH).get(LOW).execute()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(redis.set, HIGH, "v")
                nursery.start_soon(redis.pipeline().get(HIGH).get(LOW).execute)
                await trio.sleep(1)
                cluster.see([(0, SLOTS - 1, 0, ())])
            assert cluster.servers[0].ran("SET") == [(b"SET", b"a", b"v")]


async def test_a_node_that_refuses_us_says_why(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(2) as cluster, cluster.open() as redis:
        first, second = cluster.servers
        second.password = "secret"
        first.refuse = lambda words: "MOVED 15495 cluster:7001" if words[0] == b"GET" else None
        with pytest.raises(AuthenticationError):
            await redis.get(HIGH)


async def test_reads_go_to_replicas_in_turn_and_to_the_master_without_them(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(3) as cluster:
        cluster.see([(0, SLOTS - 1, 0, (1, 2))])
        async with cluster.open(read_from="replica") as redis:
            master, *replicas = cluster.servers
            assert await redis.get("k") is None
            await trio.sleep(1)
            assert [len(server.ran("READONLY")) for server in cluster.servers] == [0, 1, 1]
            assert len(master.ran("GET")) == 1
            for _ in range(4):
                await redis.get("k")
                await trio.sleep(1)
            assert [len(server.ran("GET")) for server in replicas] == [2, 2]
            replicas[0].refuse = refusing(b"GET", "MASTERDOWN Link with MASTER is down")
            replicas[1].kill()
            replicas[1].down = ConnectionRefusedError("gone")
            before = len(master.ran("GET"))
            began_at = trio.current_time()
            for _ in range(4):
                assert await redis.get("k") is None
            assert trio.current_time() == began_at
            assert len(master.ran("GET")) == before + 4
            await redis.set("k", "v")
            assert master.ran("SET")


async def test_a_fan_out_finds_the_successor_of_a_master(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(3) as cluster:
        cluster.see(HALVES)
        async with cluster.open() as redis:
            for server in cluster.servers:
                server._do_flushall = lambda _session: "OK"
            cluster.servers[0].refuse = refusing(b"FLUSHALL", "READONLY You can't write against a read only replica.")
            cluster.see([(0, HALF - 1, 2, ()), (HALF, SLOTS - 1, 1, ())])
            assert await redis.flushall() is True
            assert [len(server.ran("FLUSHALL")) for server in cluster.servers] == [0, 1, 1]


async def test_a_cancelled_call_leaves_everything_as_it_was(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(2) as cluster, cluster.open() as redis:
        first = cluster.servers[0]
        for server in cluster.servers:
            server.latency = 0.01
        tries = 0

        def refuse(words: Command) -> str | None:
            nonlocal tries
            if words[0] != b"SET":
                return None
            tries += 1
            return ("TRYAGAIN not yet", "MOVED 15495 cluster:7001", "CLUSTERDOWN down", "ASK 15495 cluster:7001")[
                tries % 4
            ]

        first.refuse = refuse
        for step in range(60):
            with trio.move_on_after(step * 0.002):
                await redis.set(HIGH, step)
            cluster.see([(0, SLOTS - 1, 0, ())])
            assert await redis.append("k", "x") == step + 1
        first.refuse = lambda _words: None
        await trio.sleep(1)
        await redis.set(HIGH, "last")
        assert await redis.get(HIGH) == b"last"


async def test_entering_waits_for_a_cluster_if_it_may(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(1) as cluster:
        cluster.see([])
        with pytest.raises(LinkError, match="cluster:7000: no node serves any slot yet"):
            async with cluster.open():
                raise AssertionError("it must not be entered")
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _later() -> None:
                await trio.sleep(2.5)
                cluster.see(HALVES[:1])

            async with cluster.open(wait=5) as redis:
                assert trio.current_time() - began_at == pytest.approx(3)
                assert await redis.get(LOW) is None


async def test_a_wrong_password_ends_the_entry_at_once(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(1) as cluster:
        cluster.servers[0].password = "secret"
        with pytest.raises(AuthenticationError):
            async with cluster.open(wait=5):
                raise AssertionError("it must not be entered")


async def test_a_transaction_reports_its_own_errors(autojump_clock: MockClock) -> None:
    async with open_scripted_cluster(1) as cluster, cluster.open() as redis:
        pipe: Any = redis.pipeline(transaction=True)
        cluster.servers[0].refuse = refusing(b"INCR", "WRONGTYPE not a number", 1)
        cluster.servers[0].refuse = lambda words: "EXECABORT discarded" if words[0] == b"EXEC" else None
        with pytest.raises(ResponseError):
            await pipe.incr("n").execute()
        assert count(cluster.servers[0], b"EXEC") == 1
