"""Whoever can speak Redis, in one shape: a client that gets, sets, claims, releases and counts, in a loop of its own.

A contender runs a piece of work in a fresh loop with a fresh, connected client. The work is written once, for Trio and
for asyncio: what differs stands in a `World`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final, Protocol, final

import trio

from trio_orchestrator.redis import open_redis
from trio_orchestrator.testing.server import RedisServer

RELEASE: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
"""Delete a key if it has this value: how a lock is given back."""
TTL: Final = 60_000
"""Milliseconds until a lock that nobody gives back is free."""
POOL: Final = 100
"""Connections of a client that needs one for each call in flight: with more, redis.asyncio is slower at 1000 tasks."""
THREADS: Final = 100
LATE: Final = object()
"""What a call came to that was cancelled at its deadline."""

Call = Callable[..., Awaitable[Any]]


@final
@dataclass(frozen=True, slots=True)
class Client:
    """The five things that are measured, each by the library's own methods."""

    get: Call
    """`get(key)` returns bytes."""
    set: Call
    """`set(key, value)` returns what is true."""
    claim: Call
    """`claim(key, token)`: SET NX PX; returns what is true if the key was free."""
    release: Call
    """`release(key, token)`: EVALSHA of `RELEASE`; returns 1 if the key had the token."""
    count: Call
    """`count(key, n)`: a pipeline of n HINCRBY; returns the n numbers."""


class World(Protocol):
    """An event loop's way to wait, to be cancelled, and to run many tasks."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    async def attempt(self, seconds: float, fn: Call, *args: Any) -> Any:
        """Return what a call returns, or `LATE` if it was cancelled after so many seconds."""
        ...

    async def together(self, tasks: int, fn: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Run `fn(0)` to `fn(tasks - 1)` in a task each, and wait for them."""
        ...


@final
class TrioWorld:
    """Trio's."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await trio.sleep(seconds)

    async def attempt(self, seconds: float, fn: Call, *args: Any) -> Any:
        """Call within a cancel scope."""
        with trio.move_on_after(seconds):
            return await fn(*args)
        return LATE

    async def together(self, tasks: int, fn: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Run tasks in a nursery."""
        async with trio.open_nursery() as nursery:
            for n in range(tasks):
                nursery.start_soon(fn, n)


@final
class AsyncioWorld:
    """asyncio's."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def attempt(self, seconds: float, fn: Call, *args: Any) -> Any:
        """Call within `asyncio.timeout`."""
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                return await fn(*args)
        except TimeoutError:
            if not scope.expired():
                raise
            return LATE

    async def together(self, tasks: int, fn: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Run tasks in a task group."""
        async with asyncio.TaskGroup() as group:
            for n in range(tasks):
                group.create_task(fn(n))


Work = Callable[[World, Client], Coroutine[Any, Any, Any]]
Open = Callable[[RedisServer, bool], AbstractAsyncContextManager[Client]]


@final
@dataclass(frozen=True, slots=True)
class Contender:
    """A library, and the loop that it runs in."""

    name: str
    """What people call it."""
    open: Open
    """Called with the server, and whether its Unix socket is meant."""
    run: Callable[..., Any] = trio.run
    """`trio.run`, or its like."""
    world: World = field(default_factory=TrioWorld)
    packages: tuple[str, ...] = ()
    """What must be installed."""

    @property
    def absent(self) -> str:
        """What is missing of its packages; empty if nothing is."""
        return ", ".join(package for package in self.packages if find_spec(package) is None)

    def work(self, work: Work, server: RedisServer, *, unix: bool = False) -> Any:
        """Run a piece of work in a fresh loop with a fresh client; return what it returns."""

        async def main() -> Any:
            async with self.open(server, unix) as client:
                return await work(self.world, client)

        return self.run(main)


def _package(name: str) -> Any:
    return importlib.import_module(name)


@asynccontextmanager
async def _ours(server: RedisServer, unix: bool) -> AsyncIterator[Client]:
    async with open_redis(server.url if unix else server.tcp_url, command_timeout=20) as redis:
        sha = str(await redis.script_load(RELEASE))

        async def count(key: str, n: int) -> Any:
            pipe: Any
            async with redis.pipeline() as pipe:
                for _ in range(n):
                    pipe.hincrby(key, "n")
                return await pipe.execute()

        claim = partial(redis.set, nx=True, px=TTL)
        yield Client(redis.get, redis.set, claim, partial(redis.evalsha, sha, 1), count)


@asynccontextmanager
async def _redis_asyncio(server: RedisServer, unix: bool) -> AsyncIterator[Client]:
    package = _package("redis.asyncio")
    url = server.url if unix else server.tcp_url
    pool = package.BlockingConnectionPool.from_url(url, max_connections=POOL, timeout=None)
    async with package.Redis.from_pool(pool) as redis:
        sha = await redis.script_load(RELEASE)

        async def count(key: str, n: int) -> Any:
            async with redis.pipeline(transaction=False) as pipe:
                for _ in range(n):
                    pipe.hincrby(key, "n")
                return await pipe.execute()

        claim = partial(redis.set, nx=True, px=TTL)
        yield Client(redis.get, redis.set, claim, partial(redis.evalsha, sha, 1), count)


@asynccontextmanager
async def _coredis(server: RedisServer, unix: bool) -> AsyncIterator[Client]:
    package = _package("coredis")
    where = {"unix_socket_path": server.path} if unix else {"host": server.host, "port": server.port}
    async with package.Redis(**where) as redis:
        sha = await redis.script_load(RELEASE)

        def release(key: str, token: str) -> Any:
            return redis.evalsha(sha, keys=[key], args=[token])

        async def count(key: str, n: int) -> Any:
            async with redis.pipeline(transaction=False) as pipe:
                answers = [pipe.hincrby(key, "n", 1) for _ in range(n)]
            return [await answer for answer in answers]

        claim = partial(redis.set, condition=package.PureToken.NX, px=TTL)
        yield Client(redis.get, redis.set, claim, release, count)


@asynccontextmanager
async def _glide(server: RedisServer, unix: bool) -> AsyncIterator[Client]:
    package = _package("glide")
    package.Logger.set_logger_config(package.LogLevel.OFF)
    address = package.NodeAddress(server.host, server.port)
    config = package.GlideClientConfiguration([address], request_timeout=20_000, inflight_requests_limit=10_000)
    glide = await package.GlideClient.create(config)
    script, nx = package.Script(RELEASE), package.ConditionalChange.ONLY_IF_DOES_NOT_EXIST
    px = package.ExpirySet(package.ExpiryType.MILLSEC, TTL)

    def release(key: str, token: str) -> Awaitable[Any]:
        answer: Awaitable[Any] = glide.invoke_script(script, [key], [token])
        return answer

    async def count(key: str, n: int) -> Any:
        batch = package.Batch(is_atomic=False)
        for _ in range(n):
            batch.hincrby(key, "n", 1)
        return await glide.exec(batch, raise_on_error=True)

    try:
        claim = partial(glide.set, conditional_set=nx, expiry=px)
        yield Client(glide.get, glide.set, claim, release, count)
    finally:
        await glide.close()


@asynccontextmanager
async def _threads(server: RedisServer, unix: bool) -> AsyncIterator[Client]:
    package, limiter = _package("redis"), trio.CapacityLimiter(THREADS)
    redis = package.Redis.from_url(server.url if unix else server.tcp_url, max_connections=THREADS)
    sha = redis.script_load(RELEASE)
    claim, release = partial(redis.set, nx=True, px=TTL), partial(redis.evalsha, sha, 1)

    def count(key: str, n: int) -> Any:
        with redis.pipeline(transaction=False) as pipe:
            for _ in range(n):
                pipe.hincrby(key, "n")
            return pipe.execute()

    def apart(fn: Callable[..., Any]) -> Call:
        async def call(*args: Any) -> Any:
            return await trio.to_thread.run_sync(fn, *args, limiter=limiter)

        return call

    try:
        yield Client(*map(apart, (redis.get, redis.set, claim, release, count)))
    finally:
        redis.close()


def _run_asyncio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


def _run_uvloop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    with asyncio.Runner(loop_factory=_package("uvloop").new_event_loop) as runner:
        return runner.run(main())


OURS: Final = "ours"
CONTENDERS: Final[Mapping[str, Contender]] = MappingProxyType(
    {
        OURS: Contender("ours", _ours),
        "uvloop": Contender("redis.asyncio on uvloop", _redis_asyncio, _run_uvloop, AsyncioWorld(), ("uvloop",)),
        "asyncio": Contender("redis.asyncio on asyncio", _redis_asyncio, _run_asyncio, AsyncioWorld()),
        "coredis": Contender("coredis on Trio", _coredis, packages=("coredis",)),
        "glide": Contender("valkey-glide on Trio", _glide, packages=("glide",)),
        "threads": Contender("redis-py in 100 threads", _threads),
    }
)
PEERS: Final = tuple(name for name in CONTENDERS if name != OURS)
