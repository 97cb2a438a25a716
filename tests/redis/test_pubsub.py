"""Publish and subscribe: on a real server, and in virtual time what concerns buffers and cancellation."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import trio
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError, DataError, NoPermissionError

from tests.redis.scripted import Push, ScriptedServer, open_client, open_scripted
from trio_orchestrator.redis import Redis, open_redis
from trio_orchestrator.redis.inbox import Overflow, SlowConsumerError
from trio_orchestrator.redis.pubsub import Message, PubSub, keyevent_channel, keyspace_channel
from trio_orchestrator.redis.subscription import Gap
from trio_orchestrator.testing import CancelAt, cancelled_everywhere
from trio_orchestrator.testing.server import RedisServer, open_redis_server

both = pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])


async def until(holds: Callable[[], bool]) -> None:
    """Wait for another process, at most 5 seconds."""
    with trio.fail_after(5):
        while not holds():  # noqa: ASYNC110 - it has no event to wait for
            await trio.sleep(0.002)


def listened(server: RedisServer, prefix: str) -> list[str]:
    """Return what anybody listens to on a real server."""
    plain: list[str] = server.command("PUBSUB", "CHANNELS", f"{prefix}*")
    shards: list[str] = server.command("PUBSUB", "SHARDCHANNELS", f"{prefix}*")
    return sorted([*plain, *shards])


def listeners(server: RedisServer) -> int:
    """Return how many connections of a real server are subscribed to something."""
    return len(server.command("CLIENT", "LIST", "TYPE", "pubsub").splitlines())


# ----------------------------------------------------------------------------------------- on a real server


@both
async def test_messages_of_all_kinds(redis_server: RedisServer, shared: bool) -> None:
    async with open_redis(redis_server.url) as redis:
        async with redis.pubsub(shared=shared) as sub:
            await sub.subscribe("kinds:a", b"kinds:b")
            await sub.psubscribe("kinds:a*")
            await sub.ssubscribe("kinds:s")
            assert listened(redis_server, "kinds:") == ["kinds:a", "kinds:b", "kinds:s"]
            assert await redis.publish("kinds:a", "both") == 2
            await redis.publish("kinds:b", b"\xff\x00")
            await redis.spublish("kinds:s", "shard")
            messages = [await sub.receive() for _ in range(4)]
            assert messages == [
                Message(b"kinds:a", b"both"),
                Message(b"kinds:a", b"both", b"kinds:a*", "pmessage"),
                Message(b"kinds:b", b"\xff\x00"),
                Message(b"kinds:s", b"shard", None, "smessage"),
            ]
            expected = {"type": "pmessage", "pattern": b"kinds:a*", "channel": b"kinds:a", "data": b"both"}
            assert messages[1].to_dict() == expected
            await sub.unsubscribe("kinds:b", "never")
            await sub.punsubscribe()
            await sub.sunsubscribe()
            await until(lambda: listened(redis_server, "kinds:") == ["kinds:a"])
            assert sub.statistics().topics == 1
        await until(lambda: listened(redis_server, "kinds:") == [])


async def test_messages_are_decoded_as_the_client_decodes(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url, decode_responses=True) as redis, redis.pubsub() as sub:
        await sub.psubscribe("décodé:*")
        await redis.publish("décodé:1", "größer")
        await redis.publish("décodé:1", b"\xff")
        await redis.publish("décodé:1", "after")
        assert await sub.receive() == Message("décodé:1", "größer", "décodé:*", "pmessage")
        with pytest.raises(UnicodeDecodeError):
            await sub.receive()
        assert (await sub.receive()).data == "after"
    async with open_redis(redis_server.url, decode_responses=True, encoding="latin-1") as redis, redis.pubsub() as sub:
        await sub.subscribe("é")
        assert listened(redis_server, "\\xe9") == []
        await redis.publish("é", "ü")
        assert await sub.receive() == Message("é", "ü")


@both
async def test_a_large_message_among_small_ones(redis_server: RedisServer, shared: bool) -> None:
    large = b"0123456789abcdef" * 16 * 1024 * 5
    async with open_redis(redis_server.url) as redis, redis.pubsub(shared=shared) as sub:
        await sub.subscribe("large")
        for data in (b"before", large, b"after"):
            await redis.publish("large", data)
        assert [(await sub.receive()).data for _ in range(3)] == [b"before", large, b"after"]


@pytest.mark.parametrize("kind", ["subscribe", "psubscribe", "ssubscribe"])
async def test_what_the_acl_forbids_is_named(redis_server: RedisServer, kind: str) -> None:
    redis_server.command("ACL", "SETUSER", "deaf", "on", ">secret", "+@all", "~*", "resetchannels", "&fine*")
    async with open_redis(redis_server.url, username="deaf", password="secret") as redis, redis.pubsub() as sub:
        subscribe = getattr(sub, kind)
        await subscribe("fine1" if kind != "psubscribe" else "fine*")
        with pytest.raises(NoPermissionError, match="permissions") as caught:
            await subscribe("fine*", "forbidden")
        assert "'&forbidden'" in str(caught.value)
        redis_server.command("ACL", "SETUSER", "deaf", f"-{kind}")
        with pytest.raises(NoPermissionError, match=rf"'\+{kind}'"):
            await subscribe("fine2")
        assert sub.statistics().topics == 1
        assert sub.statistics().gaps == 0


async def test_after_a_restart_nothing_is_lost_from_the_gap_on() -> None:
    """Many listeners, one publisher; the server goes and comes back."""
    async with open_redis_server() as server, open_redis(server.url, reconnect=ConstantBackoff(0.02)) as redis:
        async with trio.open_nursery() as nursery:
            reports: list[list[Any]] = [[] for _ in range(8)]
            for number, heard in enumerate(reports):
                nursery.start_soon(_listen, redis, number, heard, number % 2 == 0)
            await until(lambda: server.command("PUBSUB", "NUMSUB", "fan")[1] == 5)  # one is shared
            await redis.publish("fan", "before")
            await until(lambda: all(len(heard) == 1 for heard in reports))
            await server.restart()
            await until(lambda: all(len(heard) == 2 for heard in reports))
            for number in range(500):
                await redis.publish("fan", number)
            await redis.publish("fan", "end")
        for heard in reports:
            before, gap, *after = heard
            assert before == b"before"
            assert isinstance(gap, Gap)
            assert gap.since < gap.until
            assert after == [*(b"%d" % number for number in range(500)), b"end"]


async def _listen(redis: Redis, number: int, heard: list[Any], shared: bool) -> None:
    async with redis.pubsub(gaps=True, shared=shared) as sub:
        await sub.subscribe("fan", f"own{number}")
        async for item in sub:
            heard.append(item if isinstance(item, Gap) else item.data)
            if heard[-1] == b"end":
                assert sub.statistics().gaps == 1
                return


async def test_a_gap_that_is_not_told_is_counted(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url) as redis, redis.pubsub() as sub:
        await sub.subscribe("counted")
        redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda: sub.statistics().gaps == 1)
        await redis.publish("counted", "after")
        assert (await sub.receive()).data == b"after"


async def test_pubsubs_that_share_a_connection_do_not_disturb_each_other(redis_server: RedisServer) -> None:
    before = listeners(redis_server)
    async with open_redis(redis_server.url) as redis, redis.pubsub(shared=True) as stays:
        await stays.subscribe("common", "mine")
        async with redis.pubsub(shared=True, buffer=1, overflow="drop_newest") as slow:
            await slow.subscribe("common", "theirs")
            assert listeners(redis_server) == before + 1
            for number in range(50):
                await redis.publish("common", number)
            await slow.unsubscribe("common")
        await redis.publish("theirs", "no")
        await redis.publish("common", "yes")
        assert [(await stays.receive()).data for _ in range(51)] == [*(b"%d" % number for number in range(50)), b"yes"]
        assert await stays.get_message(0.01) is None
    await until(lambda: listeners(redis_server) == before)


async def test_get_message(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url) as redis, redis.pubsub() as sub:
        await sub.subscribe("get")
        assert await sub.get_message() is None
        await redis.publish("get", 1)
        await until(lambda: sub.statistics().buffered == 1)
        assert await sub.get_message() == Message(b"get", b"1")
        assert await sub.get_message(0.01) is None
        await redis.publish("get", 2)
        assert await sub.get_message(math.inf) == Message(b"get", b"2")


async def test_keyspace_notifications(redis_server: RedisServer) -> None:
    old = redis_server.command("CONFIG", "GET", "notify-keyspace-events")[1]
    redis_server.command("CONFIG", "SET", "notify-keyspace-events", "KEA")
    try:
        async with open_redis(redis_server.url, db=3) as redis, redis.pubsub() as sub:
            await sub.psubscribe(keyspace_channel("noted:*", 3))
            await sub.subscribe(keyevent_channel(b"del", 3))
            await redis.set("noted:1", "x")
            await redis.delete("noted:1")
            heard = [(m.channel, m.data) for m in [await sub.receive() for _ in range(3)]]
            assert sorted(heard) == [
                (b"__keyevent@3__:del", b"noted:1"),
                (b"__keyspace@3__:noted:1", b"del"),
                (b"__keyspace@3__:noted:1", b"set"),
            ]
    finally:
        redis_server.command("CONFIG", "SET", "notify-keyspace-events", old)


@both
async def test_leaving_closes_what_is_its_own_at_once(redis_server: RedisServer, shared: bool) -> None:
    before = listeners(redis_server)
    async with open_redis(redis_server.url) as redis:
        with trio.CancelScope() as scope:
            async with redis.pubsub(shared=shared) as sub:
                await sub.subscribe("leave")
                redis_server.stop()
                scope.cancel()
                started = trio.current_time()
                await trio.lowlevel.checkpoint()
        redis_server.wake()
        assert scope.cancelled_caught
        assert trio.current_time() - started < 0.5
        await until(lambda: listeners(redis_server) == before)
        with pytest.raises(trio.ClosedResourceError):
            await sub.receive()
        with pytest.raises(trio.ClosedResourceError):
            await sub.subscribe("again")


async def test_an_unfinished_loop_leaves_nothing_behind(redis_server: RedisServer) -> None:
    async with open_redis(redis_server.url) as redis, redis.pubsub() as sub:
        await sub.subscribe("loop")
        await redis.publish("loop", 1)
        async for _message in sub:
            break
        gc.collect()  # an asynchronous generator would be complained about here


# ------------------------------------------------------------------------------------------- in virtual time


async def _fill(scripted: ScriptedServer, *numbers: int) -> None:
    for number in numbers:
        scripted.publish(b"a", b"%d" % number)
    await trio.testing.wait_all_tasks_blocked()


async def _drain(sub: PubSub[Any]) -> list[Any]:
    """Take all that is there; a number for a message, and negative the number of those that were dropped."""
    taken = list[Any]()
    while True:
        try:
            item = await sub.get_message()
        except SlowConsumerError as error:
            taken.append(-error.dropped)
            continue
        if item is None:
            return taken
        taken.append(item if isinstance(item, Gap) else int(item.data))


@pytest.mark.parametrize(
    ("overflow", "expected"),
    [("raise", [1, 2, 3, -2, 6, 7, -1]), ("drop_newest", [1, 2, 3, 6, 7]), ("drop_oldest", [3, 4, 6, 7, 8])],
)
async def test_a_slow_consumer(overflow: Overflow, expected: list[int], autojump_clock: trio.abc.Clock) -> None:
    async with (
        open_scripted() as scripted,
        open_client(scripted) as redis,
        redis.pubsub(buffer=3, overflow=overflow) as sub,
    ):
        await sub.subscribe("a")
        await _fill(scripted, 1, 2, 3, 4, 5)
        taken = [(await sub.receive()).data, (await sub.receive()).data]
        await _fill(scripted, 6, 7, 8)
        figures = sub.statistics()
        assert [*map(int, taken), *await _drain(sub)] == expected
        assert figures.received == 8
        assert figures.received == figures.dropped + figures.buffered + 2
        assert figures.buffered == 3


async def test_drop_oldest_keeps_the_newest_and_the_gap(autojump_clock: trio.abc.Clock) -> None:
    async with (
        open_scripted() as scripted,
        open_client(scripted) as redis,
        redis.pubsub(buffer=3, overflow="drop_oldest", gaps=True) as sub,
    ):
        await sub.subscribe("a")
        await _fill(scripted, 1, 2)
        scripted.kill()
        await trio.sleep(5)
        scripted.kill()
        await trio.sleep(5)
        await _fill(scripted, 3, 4, 5, 6)
        assert await _drain(sub) == [Gap(0, 5), 4, 5, 6], "two gaps in a row are one"
        assert sub.statistics().gaps == 2


async def test_several_consumers_share_the_messages(autojump_clock: trio.abc.Clock) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis, redis.pubsub() as sub:
        await sub.subscribe("a")
        taken: list[int] = []

        async def take() -> None:
            with trio.move_on_after(5):
                async for message in sub:
                    taken.append(int(message.data))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(take)
            await trio.testing.wait_all_tasks_blocked()
            await _fill(scripted, *range(10))
            await _fill(scripted, *range(10, 12))
        assert sorted(taken) == list(range(12))


def test_a_consumer_that_is_cancelled_anywhere_loses_no_message() -> None:
    async def scenario(injector: CancelAt) -> None:
        async with open_scripted() as scripted, open_client(scripted) as redis, redis.pubsub() as sub:
            await sub.subscribe("a")
            taken: list[int] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_publish_slowly, scripted)
                with injector.watch():
                    while len(taken) < 6:
                        message = await sub.receive() if len(taken) % 2 else await sub.get_message(0.7)
                        if message is not None:
                            taken.append(int(message.data))
            await trio.testing.wait_all_tasks_blocked()
            assert [*taken, *await _drain(sub)] == list(range(6))

    assert cancelled_everywhere(scenario, seeds=range(2)) >= 12


async def _publish_slowly(scripted: ScriptedServer) -> None:
    for number in range(6):
        await trio.sleep(0.5 * (number % 3))
        scripted.publish(b"a", b"%d" % number)


@both
def test_a_pubsub_that_is_cancelled_anywhere_leaves_nothing(shared: bool) -> None:
    async def scenario(injector: CancelAt) -> None:
        async with open_scripted() as scripted, open_client(scripted) as redis:
            scripted.latency = 0.25
            with injector.watch():
                async with redis.pubsub(shared=shared) as sub:
                    await sub.subscribe("a", "b")
                    await sub.psubscribe("p*")
                    await sub.unsubscribe("a")
                    assert sub.statistics().topics == 2
            if not shared:
                assert all(end.closed for end in scripted.ends[1:]), "closed when the block is left"
                assert not redis._server._event_links
            await trio.sleep(20)
            assert [session.topics for session in scripted.sessions if session.alive and session.topics] == []
            assert sum(session.alive for session in scripted.sessions) <= (2 if shared else 1)

    assert cancelled_everywhere(scenario, seeds=range(2)) >= 6


async def test_the_consumer_is_told_when_the_server_ends_a_subscription(autojump_clock: trio.abc.Clock) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis, redis.pubsub() as sub:
        await sub.ssubscribe("s")
        await sub.subscribe("a")
        await _fill(scripted, 1)
        scripted.session.say(Push([b"sunsubscribe", b"s", 0]))
        await trio.testing.wait_all_tasks_blocked()
        assert (await sub.receive()).data == b"1"
        with pytest.raises(Exception, match="its slot has moved"):
            await sub.receive()
        assert sub.statistics().topics == 1
        await _fill(scripted, 2)
        assert (await sub.receive()).data == b"2"


@both
async def test_the_end_of_the_client_wakes_its_consumers(shared: bool, autojump_clock: trio.abc.Clock) -> None:
    """A pubsub that outlives its client, which good nesting excludes."""
    async with open_scripted() as scripted, trio.open_nursery() as nursery:
        async with open_client(scripted) as redis:
            sub = redis.pubsub(shared=shared)
            await sub.__aenter__()
            await sub.subscribe("a", "b")
            nursery.start_soon(_closed, sub)
            await trio.testing.wait_all_tasks_blocked()
        await _closed(sub)
        await sub.__aexit__(None, None, None)


async def _closed(sub: PubSub[Any]) -> None:
    for _ in range(3):
        with pytest.raises(trio.ClosedResourceError):
            await sub.receive()


@pytest.mark.parametrize("steps", range(5))
async def test_leaving_while_others_use_it(steps: int, autojump_clock: trio.abc.Clock) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis, trio.open_nursery() as nursery:
        scripted.latency = 0.25
        async with redis.pubsub(shared=True) as sub:
            await sub.subscribe("a")
            nursery.start_soon(_closed, sub)
            nursery.start_soon(_not_subscribed, sub)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
        await trio.sleep(5)
        assert [session.topics for session in scripted.sessions if session.topics] == []


async def test_a_connection_that_was_refused_is_tried_anew(autojump_clock: trio.abc.Clock) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis, redis.pubsub() as sub:
        scripted.password = "new"
        with pytest.raises(AuthenticationError):
            await sub.subscribe("a")
        scripted.password = ""
        await sub.subscribe("a")
        await _fill(scripted, 1)
        assert (await sub.receive()).data == b"1"


async def _not_subscribed(sub: PubSub[Any]) -> None:
    with pytest.raises(trio.ClosedResourceError):
        await sub.subscribe("a", "b")


async def test_what_is_wrong_is_said_before_anything_is_sent(autojump_clock: trio.abc.Clock) -> None:
    async with open_scripted() as scripted, open_client(scripted) as redis:
        for wrong in (0, -1, 1.5, math.nan):
            with pytest.raises(ValueError, match="buffer must be a whole number"):
                redis.pubsub(buffer=wrong)
        with pytest.raises(TypeError, match="buffer must be a whole number"):
            redis.pubsub(buffer="10")  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="overflow must be one of raise, drop_oldest, drop_newest"):
            redis.pubsub(overflow="block")  # type: ignore[call-overload]
        sub = redis.pubsub()
        with pytest.raises(trio.ClosedResourceError, match="async with"):
            await sub.subscribe("a")
        async with sub:
            with pytest.raises(ValueError, match="names must be at least one"):
                await sub.subscribe()
            for bad in (None, True, object()):
                with pytest.raises(DataError):
                    await sub.subscribe("a", bad)  # type: ignore[arg-type]
            assert sub.statistics().topics == 0
        assert len(scripted.sessions) == 1, "nothing was opened"


def test_names_of_notifications() -> None:
    assert keyspace_channel("a:*") == "__keyspace@0__:a:*"
    assert keyspace_channel(b"\xff", "*") == b"__keyspace@*__:\xff"
    assert keyevent_channel("expired", 2) == "__keyevent@2__:expired"
