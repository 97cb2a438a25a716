"""Clients in clients, in a queue, in a child of the user's nursery: raised in and cancelled at every level."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory

import pytest
import trio

from tests.redis.scripted import ScriptedServer, open_scripted
from tests.redis.scripted_commands import listening, teach
from trio_orchestrator import open_task_queue
from trio_orchestrator.redis import Redis, open_redis
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

CLIENTS = ("first client", "second client", "third client")
LEVELS = ("child", "queue", *CLIENTS, "innermost", "job")
At = Callable[[str], Awaitable[None]]


class Levels:
    """A tree: a child of a nursery holds a queue, which holds three clients in each other, of which the last is used.

    Args:
        at: Called in the block of each level, once those inside it have been left; in `innermost` before that.
    """

    def __init__(self, url: str, at: At) -> None:
        self._url = url
        self._at = at
        self.scopes = {name: trio.CancelScope() for name in LEVELS}
        self.caught: list[BaseException] = []
        self.left: list[str] = []

    async def child(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell of the start once all are open."""
        try:
            with self.scopes["child"]:
                await self._queue(task_status)
                await self._at("child")
        except ValueError as error:
            self.caught.append(error)

    async def _queue(self, task_status: trio.TaskStatus[None]) -> None:
        with self.scopes["queue"]:
            async with open_task_queue(concurrency=2) as queue:
                await self._client(0, [], lambda redis: queue.run(self._job, redis), task_status)
                await self._at("queue")

    async def _client(
        self,
        depth: int,
        outer: list[Redis],
        use: Callable[[Redis], Awaitable[None]],
        task_status: trio.TaskStatus[None],
    ) -> None:
        with self.scopes[CLIENTS[depth]]:
            async with open_redis(self._url) as redis:
                if depth == 2:
                    task_status.started()
                    await self._innermost([*outer, redis], use)
                else:
                    await self._client(depth + 1, [*outer, redis], use, task_status)
                await self._at(CLIENTS[depth])
            self.left.append(CLIENTS[depth])

    async def _innermost(self, clients: list[Redis], use: Callable[[Redis], Awaitable[None]]) -> None:
        with self.scopes["innermost"]:
            for number, redis in enumerate(clients):
                await redis.incr(f"used {number}")
            await use(clients[-1])
            await self._at("innermost")

    async def _job(self, redis: Redis) -> None:
        with self.scopes["job"]:
            await redis.incr("job")
            await self._at("job")


@asynccontextmanager
async def open_socket() -> AsyncGenerator[tuple[ScriptedServer, str]]:
    async with AsyncExitStack() as stack:
        path = f"{stack.enter_context(TemporaryDirectory(prefix='redis-'))}/socket"
        scripted = await stack.enter_async_context(open_scripted())
        teach(scripted)
        await stack.enter_async_context(listening(scripted, path))
        yield scripted, f"unix://{path}"
        await trio.sleep(1)
        assert [session.number for session in scripted.sessions if session.alive] == []


@pytest.mark.parametrize("level", LEVELS)
def test_an_error_at_any_level_comes_out_bare(level: str) -> None:
    error = ValueError(level)

    async def fail(where: str) -> None:
        await trio.lowlevel.checkpoint()
        if where == level:
            raise error

    async def run() -> None:
        async with open_socket() as (scripted, url), trio.open_nursery() as nursery:
            levels = Levels(url, fail)
            await nursery.start(levels.child)
        assert levels.caught == [error]
        assert error.__context__ is error.__cause__ is None
        assert len(scripted.sessions) == 3

    run_virtual(run)


@pytest.mark.parametrize("level", LEVELS)
def test_any_level_can_be_cancelled(level: str) -> None:
    async def run() -> None:
        async with open_socket() as (scripted, url), trio.open_nursery() as nursery:

            async def cancel(where: str) -> None:
                if where == "job":
                    await trio.sleep(5)
                    levels.scopes[level].cancel()
                await trio.lowlevel.checkpoint()

            levels = Levels(url, cancel)
            await nursery.start(levels.child)
        assert levels.caught == []
        assert levels.scopes[level].cancelled_caught
        outside = CLIENTS.index(level) if level in CLIENTS else {"child": 0, "queue": 0}.get(level, 3)
        assert levels.left == [*reversed(CLIENTS[:outside])]
        assert len(scripted.sessions) == 3

    run_virtual(run)


def test_all_of_it_cancelled_at_each_of_its_checkpoints() -> None:
    async def nothing(where: str) -> None:
        await trio.lowlevel.checkpoint()

    async def run(injector: CancelAt) -> None:
        async with open_socket() as (_, url), trio.open_nursery() as nursery:
            with injector.watch():
                async with trio.open_nursery() as inner:
                    levels = Levels(url, nothing)
                    await inner.start(levels.child)
            assert levels.caught == []
            nursery.cancel_scope.cancel()

    assert cancelled_everywhere(run, seeds=range(2), want=lambda task: task.name.endswith("child")) > 20
