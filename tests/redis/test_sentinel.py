"""Real Sentinels: failovers under load, seen from the servers; entering, roles and refusals."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import trio
from redis.exceptions import RedisError

from trio_orchestrator.redis import LinkError, Redis, open_sentinel
from trio_orchestrator.testing.sentinel import RedisSentinelServers
from trio_orchestrator.testing.server import RedisServer

TASKS: Final = 50
NOTE: Final = """
local now = redis.call('TIME')
return redis.call('RPUSH', 'log', ARGV[1] .. ' ' .. now[1] .. string.format('.%06d', now[2]))
"""
"""Note a word in a list, and when that ran by the server's own clock."""

NEEDED: Final = "+hello +ping +client|setinfo +subscribe +sentinel|master +sentinel|sentinels +sentinel|myid"
NEEDED_TOO: Final = "+sentinel|get-master-addr-by-name"


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

        nursery.start_soon(load.run, call)
        await until(lambda: len(load.answers) > TASKS)
        old.kill()
        left_after = await leave_during_failover(redis_sentinels)
        new = await redis_sentinels.wait_failover(old)
        seen = len(load.answers)
        await until(lambda: len(load.answers) > seen + 2 * TASKS)
        load.over = True
    assert left_after < 0.25
    last = {word.split("-")[0]: word for word in load.acknowledged}
    assert {key: new.command("GET", key) for key in last} == last
    assert len(load.errors) <= 3 * TASKS
    assert all(isinstance(error, LinkError) for error in load.errors)
    assert load.longest_gap() < 6
    print(f"\n{len(load.answers)} answers, {len(load.errors)} errors, none for {load.longest_gap():.2f} s")


async def leave_during_failover(group: RedisSentinelServers) -> float:
    """Return how long leaving takes while there is no master, and calls have been waiting for one."""
    began = 0.0
    async with enter(group) if group.master.is_running else suppress_entry(group):
        began = trio.current_time()
    return trio.current_time() - began
