"""Real servers, started at their first use, one of each kind a session; each test that asks for one finds it empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trio_orchestrator.testing.server import RedisServer, ServerIdentity, open_redis_server

_used: list[ServerIdentity] = []


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for the session, on a Unix socket (`url`) and on TCP (`tcp_url`). Put it back as you found it."""
    with open_redis_server(unix=True, tcp=True) as server:
        _used.append(server.identity)
        yield server


@pytest.fixture
def clean_redis(redis_server: RedisServer) -> RedisServer:
    """The session's server, awake, without data, scripts and functions."""
    redis_server.wake()
    for command in (("FLUSHALL",), ("SCRIPT", "FLUSH"), ("FUNCTION", "FLUSH"), ("CLIENT", "UNPAUSE")):
        redis_server.command(*command)
    return redis_server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for identity in dict.fromkeys(_used):
        terminalreporter.write_line(f"redis tests ran on {identity}")
