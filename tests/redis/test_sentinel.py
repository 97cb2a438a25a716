"""Real Sentinels: failovers under load, seen from the servers; entering, roles and refusals."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import trio
from redis.exceptions import RedisError

from trio_orchestrator.redis import LinkError, Message, PubSub, Redis, open_sentinel
from trio_orchestrator.redis.sentinel_link import SentinelLink
from trio_orchestrator.testing.sentinel import RedisSentinelServers
from trio_orchestrator.testing.server import RedisServer

TASKS: Final = 50
NOTE: Final = """
local now = redis.call('TIME')
return redis.call('RPUSH', 'log', ARGV[1] .. ' ' .. now[1] .. string.format('.%06d', now[2]))
"""
"""Note a word in a list, and when that ran by the server's own clock."""


NEEDED: Final = (
    "+hello +ping +client +subscribe"
    " +sentinel|master +sentinel|get-master-addr-by-name +sentinel|sentinels +sentinel|myid"
)
"""What a user of the Sentinels must be allowed."""


def urls(group: RedisSentinelServers) -> list[str]:
    return [sentinel.tcp_url for sentinel in group.sentinels]


def enter(group: RedisSentinelServers, **options: Any) -> AbstractAsyncContextManager[Redis]:
    return open_sentinel(group.name, urls(group), **options)


def address(server: RedisServer) -> str:
    return f"{server.host}:{server.port}"


async def until(true: Callable[[], bool], within: float = 5) -> None:
    with trio.fail_after(within):
        while not true():  # noqa: ASYNC110 - of another process
            await trio.sleep(0.01)


# ------------------------------------------------------------------------------------------------ observers


class Ear:
    """What the Sentinels publish, heard by connections of its own, with the time."""

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}

    async def listen(self, sentinel: RedisServer, *, task_status: trio.TaskStatus[None]) -> None:
        async with await trio.open_tcp_stream(sentinel.host, sentinel.port) as stream:
            await stream.send_all(b"PSUBSCRIBE *\r\n")
            await stream.receive_some()
            task_status.started()
            async for data in stream:
                for word in data.decode(errors="replace").split():
                    if word[0] == "+":
                        self.heard.setdefault(word, time.time())


async def open_ear(nursery: trio.Nursery, group: RedisSentinelServers) -> Ear:
    ear = Ear()
    for sentinel in group.sentinels:
        await nursery.start(ear.listen, sentinel)
    return ear


@dataclass
class Load:
    """Many tasks that call without a pause, and what became of it."""

    answers: list[float] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    acknowledged: dict[str, float] = field(default_factory=dict)
    over: bool = False

    async def run(self, call: Callable[[str], Awaitable[None]], tasks: int = TASKS) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(self._repeat, call, number)

    async def _repeat(self, call: Callable[[str], Awaitable[None]], number: int) -> None:
        count = 0
        while not self.over:
            count += 1
            word = f"{number}-{count}"
            try:
                await call(word)
            except RedisError as error:
                self.errors.append(error)
            else:
                self.answers.append(time.time())
                self.acknowledged[word] = self.answers[-1]
            await trio.sleep(0.002)

    def longest_gap(self) -> float:
        return max(after - before for before, after in zip(self.answers, self.answers[1:], strict=False))


# ------------------------------------------------------------------------------------------------ failovers


async def test_the_master_dies_under_load(redis_sentinels: RedisSentinelServers) -> None:
    old, load = redis_sentinels.master, Load()

    async with enter(redis_sentinels, command_timeout=8) as redis, trio.open_nursery() as nursery:

        async def call(word: str) -> None:
            assert await redis.echo(word) == word.encode()
            assert await redis.set(word.split("-")[0], word) is True

        leaver = await nursery.start(Leaver().run, redis_sentinels)
        nursery.start_soon(load.run, call)
        await until(lambda: len(load.answers) > TASKS)
        old.kill()
        leaver.go.set()
        new = await redis_sentinels.wait_failover(old)
        seen = len(load.answers)
        await until(lambda: len(load.answers) > seen + 2 * TASKS)
        load.over = True
    last = {word.split("-")[0]: word for word in load.acknowledged}
    assert {key: new.command("GET", key) for key in last} == last
    assert len(load.errors) <= 3 * TASKS
    assert all(type(error) is LinkError for error in load.errors)
    assert load.longest_gap() < 6
    assert leaver.took < 0.25
    print(f"\n{len(load.answers)} answers, {len(load.errors)} errors, no answer for {load.longest_gap():.2f} s")


class Leaver:
    """A client whose block is left while there is no master, and calls have been waiting for one."""

    def __init__(self) -> None:
        self.go = trio.Event()
        self.took = math.inf

    async def run(self, group: RedisSentinelServers, *, task_status: trio.TaskStatus[Leaver]) -> None:
        async with enter(group) as redis:
            task_status.started(self)
            await self.go.wait()
            with trio.move_on_after(0.1):
                async with trio.open_nursery() as nursery:
                    for _ in range(10):
                        nursery.start_soon(self._call, redis)
            began = trio.current_time()
        self.took = trio.current_time() - began

    async def _call(self, redis: Redis) -> None:
        with suppress(LinkError):
            await redis.get("key")
        await redis.get("key")


async def test_an_old_master_that_wakes_up_gets_no_more_writes(redis_sentinels: RedisSentinelServers) -> None:
    """It is stopped until its successor has been chosen, and then says OK to everything, for ten seconds."""
    old, load, popped = redis_sentinels.master, Load(), list[Any]()
    async with enter(redis_sentinels) as redis, redis.sibling() as twin, trio.open_nursery() as nursery:
        ear = await open_ear(nursery, redis_sentinels)

        async def call(word: str) -> None:
            client = twin if word[-1] in "02468" else redis
            await client.eval(NOTE, 0, word)

        async with redis.pubsub() as sub, redis.dedicated() as mine, trio.open_nursery() as callers:
            await sub.subscribe("news")
            await mine.ping()
            callers.start_soon(block, redis, popped)
            callers.start_soon(load.run, call)
            await until(lambda: len(load.answers) > TASKS)
            old.stop()
            await until(lambda: "+selected-slave" in ear.heard)
            old.wake()
            new = await redis_sentinels.wait_failover(old)
            await trio.sleep(0.6)
            load.over = True
            with pytest.raises(LinkError):
                await mine.ping()
            assert [link.address for link in redis.statistics().events] == [address(new)]
            new.command("PUBLISH", "news", "moved")
            new.command("LPUSH", "queue", "moved")
            with trio.fail_after(1):
                assert [message.data async for message in one_of(sub)] == [b"moved"]
        assert popped == [(b"queue", b"moved")]
        assert redis.statistics().address == twin.statistics().address == address(new)
        nursery.cancel_scope.cancel()
    check_moved(ear.heard, load, noted(old), noted(new))


async def block(redis: Redis, popped: list[Any]) -> None:
    """Wait for something in a list, again if the connection is lost."""
    while not popped:
        with suppress(RedisError):
            popped.append(await redis.blpop(["queue"], 10))


async def one_of(sub: PubSub[Message]) -> AsyncGenerator[Message, None]:
    async for message in sub:
        yield message
        break


def noted(server: RedisServer) -> dict[str, float]:
    """Return what a server has run, and when."""
    lines = [line.split() for line in server.command("LRANGE", "log", 0, -1)]
    return {word: float(at) for word, at in lines}


def check_moved(heard: dict[str, float], load: Load, at_old: dict[str, float], at_new: dict[str, float]) -> None:
    switched = heard["+switch-master"]
    ran = [at - switched for word, at in at_old.items() if word not in at_new]
    told = [at - switched for word, at in load.acknowledged.items() if word not in at_new]
    late = [sum(at > 0 for at in times) for times in (ran, told)]
    print(
        f"\nafter +switch-master the old master ran {late[0]} writes and acknowledged {late[1]}; the last came"
        f" {max(ran, default=0):+.3f} s after it ({heard['+promoted-slave'] - switched:+.3f} s: +promoted-slave);"
        f" {len(told)} acknowledged ones were lost in all"
    )
    assert len(told) > TASKS  # it did say OK
    assert max(ran + told) < 0.5
    assert sum(at > switched + 0.5 for at in at_new.values()) > TASKS


# ------------------------------------------------------------------------------------------------ roles


def ran(server: RedisServer, command: str) -> tuple[int, int]:
    """Return how often a server ran a command, and refused it."""
    facts = dict(
        pair.split("=")
        for pair in server.info("commandstats").get(f"cmdstat_{command}", "calls=0,rejected_calls=0").split(",")
    )
    return int(facts["calls"]), int(facts["rejected_calls"])


async def test_a_master_that_becomes_a_replica_refuses_one_write_and_gets_no_call(
    redis_sentinels: RedisSentinelServers,
) -> None:
    master, (replica, *_) = redis_sentinels.master, redis_sentinels.replicas
    answers = list[int]()
    async with enter(redis_sentinels) as redis, trio.open_nursery() as nursery:
        await redis.set("n", 41)
        master.command("CONFIG", "RESETSTAT")
        master.command("REPLICAOF", replica.host, replica.port)
        nursery.start_soon(write, redis, answers)
        await until(lambda: ran(master, "role")[0] >= 3)  # it has been looked for, and found to be no master
        assert (ran(master, "incrby"), ran(master, "get"), ran(master, "blpop")) == ((0, 1), (0, 0), (0, 0))
        nursery.start_soon(redis.get, "n")
        nursery.start_soon(redis.blpop, ["nothing"], 0.01)
        asked = ran(master, "role")[0]
        await until(lambda: ran(master, "role")[0] >= asked + 2)
        assert (ran(master, "incrby"), ran(master, "get"), ran(master, "blpop")) == ((0, 1), (0, 0), (0, 0))
        assert "lib-name=trio_orchestrator" not in replica.command("CLIENT", "LIST")
        master.command("REPLICAOF", "NO", "ONE")
    assert answers == [42]
    assert (ran(master, "incrby"), ran(master, "get"), ran(master, "blpop")) == ((1, 1), (1, 0), (1, 0))


async def write(redis: Redis, answers: list[int]) -> None:
    answers.append(await redis.incr("n"))


# ------------------------------------------------------------------------------------------------ entering


async def refused(group: RedisSentinelServers, *where: str, **options: Any) -> str:
    with pytest.raises(LinkError) as caught:
        async with open_sentinel(options.pop("name", group.name), where, **options):
            raise AssertionError
    return str(caught.value)


async def test_entering(redis_sentinels: RedisSentinelServers) -> None:
    first, *_ = redis_sentinels.sentinels
    dead, stranger = "redis://127.0.0.1:1", f"redis://nobody:wrong@{address(first)}"
    async with open_sentinel(redis_sentinels.name, [dead, first.tcp_url]) as redis:
        assert redis.statistics().address == address(redis_sentinels.master)
    error = await refused(redis_sentinels, dead, stranger)
    assert error.startswith("no Sentinel of 'main' can be reached: 127.0.0.1:1: ")
    assert "Connection refused" in error
    assert f"{address(first)}: invalid username-password pair or user is disabled" in error
    error = await refused(redis_sentinels, *urls(redis_sentinels), name="mine")
    assert error.count("No such master with that name") == 3


async def test_what_a_user_of_the_sentinels_must_be_allowed(redis_sentinels: RedisSentinelServers) -> None:
    for sentinel in redis_sentinels.sentinels:
        sentinel.command("ACL", "SETUSER", "watcher", "reset", "on", ">secret", "allchannels", *NEEDED.split())
        sentinel.command("ACL", "LOG", "RESET")
    try:
        options: dict[str, Any] = {"sentinel_username": "watcher", "sentinel_password": "secret"}
        async with open_sentinel(redis_sentinels.name, urls(redis_sentinels)[:1], **options) as redis:
            links = sentinel_links(redis)
            await until(lambda: len(links) == 3 and all(link.is_ready for link in links.values()))
        for sentinel in redis_sentinels.sentinels:
            assert sentinel.command("ACL", "LOG") == []
            sentinel.command("ACL", "SETUSER", "watcher", "-subscribe")
        error = await refused(redis_sentinels, *urls(redis_sentinels), **options)
        assert error.count("has no permissions to run the 'subscribe' command") == 3
    finally:
        for sentinel in redis_sentinels.sentinels:
            sentinel.command("ACL", "DELUSER", "watcher")


def sentinel_links(redis: Redis) -> dict[Any, SentinelLink]:
    beside: Any = redis._server._beside
    links = beside.__self__._links
    assert isinstance(links, dict)
    return links


@pytest.mark.parametrize("wrong", ["redis://localhost", [], ()])
def test_the_urls_are_a_list(wrong: Any) -> None:
    with pytest.raises(ValueError, match="sentinels must be a list of URLs"):
        open_sentinel("main", wrong)
