"""Real servers, started at their first use, one of each kind a session; each test that asks for one finds it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from trio_orchestrator.testing.cluster import RedisClusterServers, open_redis_cluster_servers
from trio_orchestrator.testing.program import ServerIdentity
from trio_orchestrator.testing.sentinel import RedisSentinelServers, open_redis_sentinels
from trio_orchestrator.testing.server import RedisServer, open_redis_server

_used: list[ServerIdentity] = []


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for the session, on a Unix socket (`url`, `path`) and on TCP (`tcp_url`, `port`).

    It may hold what other tests have left: use keys of your own, or `clean_redis`.
    """
    with open_redis_server(unix=True, tcp=True) as server:
        _used.append(server.identity)
        yield server


@pytest.fixture
def clean_redis(redis_server: RedisServer) -> RedisServer:
    """The session's server, awake, without data, scripts, functions, pauses and foreign connections."""
    redis_server.wake()
    for command in (
        ("FLUSHALL",),
        ("SCRIPT", "FLUSH"),
        ("FUNCTION", "FLUSH"),
        ("CLIENT", "UNPAUSE"),
        ("CONFIG", "RESETSTAT"),
    ):
        redis_server.command(*command)
    return redis_server


@pytest.fixture(scope="session", autouse=True)
def _ahead(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Any]]]:
    """Start what takes seconds until it is ready, if it will be needed, beside the tests that need no server."""
    wanted = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    ready: dict[str, Future[Any]] = {}
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        for name, group in _GROUPS.items():
            if name in wanted:
                opening = group()
                ready[name] = pool.submit(opening.__enter__)
                stack.push(_close(opening, ready[name]))
        yield ready


_GROUPS: dict[str, Callable[[], Any]] = {"_cluster": open_redis_cluster_servers, "_sentinels": open_redis_sentinels}


def _close(opening: Any, ready: Future[Any]) -> Callable[..., None]:
    def close(*error: Any) -> None:
        if ready.exception() is None:
            opening.__exit__(*error)

    return close


@pytest.fixture(scope="session")
def _cluster(_ahead: dict[str, Future[RedisClusterServers]]) -> RedisClusterServers:
    cluster = _ahead["_cluster"].result()
    _used.append(cluster.nodes[0].identity)
    return cluster


@pytest.fixture
def redis_cluster(_cluster: RedisClusterServers) -> RedisClusterServers:
    """The session's cluster of three masters and three replicas, whole and without data.

    What a test has killed or stopped is brought back here, but who is master may change: ask `masters`, not `nodes`.
    A test that moves slots moves them back itself.
    """
    _cluster.heal_blocking()
    for master in _cluster.masters:
        master.command("FLUSHALL")
    return _cluster


@pytest.fixture(scope="session")
def _sentinels(_ahead: dict[str, Future[RedisSentinelServers]]) -> RedisSentinelServers:
    sentinels = _ahead["_sentinels"].result()
    _used.append(sentinels.servers[0].identity)
    return sentinels


@pytest.fixture
def redis_sentinels(_sentinels: RedisSentinelServers) -> RedisSentinelServers:
    """The session's three Sentinels with a master and a replica, whole and without data; who is master may change."""
    _sentinels.heal_blocking()
    _sentinels.master.command("FLUSHALL")
    return _sentinels


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for identity in dict.fromkeys(_used):
        terminalreporter.write_line(f"the Redis tests ran on {identity}")
