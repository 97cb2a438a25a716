"""Its arguments, its inner transport, and how it is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.transport.line import Line, client
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import run_virtual
from trio_orchestrator.transport import HttpxTransport


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return run_virtual(main)


def test_it_is_entered_and_closed_with_the_client() -> None:
    line = Line(200)

    async def main() -> None:
        async with client(line):
            assert (line.entered, line.closed) == (1, 0)
        assert (line.entered, line.closed) == (1, 1)
        await client(line).aclose()
        assert line.closed == 2

    run(main)


def test_its_repr_shows_the_policy() -> None:
    assert repr(
        HttpxTransport(Timeout(3), transport=httpx.MockTransport(lambda request: httpx.Response(200)))
    ).startswith("HttpxTransport(Timeout(3), transport=<httpx.MockTransport")


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"policy": 3}, TypeError, "policy must be a Policy such as Retry(on=http_transient), got 3"),
        ({"transport": 3}, TypeError, "transport must be an httpx.AsyncBaseTransport, got 3"),
        ({"cooldown": 3}, TypeError, "cooldown must be a Cooldown, got 3"),
        ({"limiter": 3}, TypeError, "limiter must have acquire(), hold() and observe(), as a RateLimiter has, got 3"),
        ({"key": 3}, TypeError, "key must be a plain function, got 3"),
        ({"wall": 3}, TypeError, "wall must be a plain function, got 3"),
        ({"retry_methods": "GET"}, TypeError, "retry_methods must be several of type str, got 'GET'"),
        ({"retry_methods": 3}, TypeError, "retry_methods must be several of type str, got 3"),
        ({"retry_methods": [3]}, TypeError, "retry_methods must be several of type str, got [3]"),
        ({"status": 503}, TypeError, "status must be several of type int, got 503"),
        ({"status": ["503"]}, TypeError, "status must be several of type int, got ['503']"),
        ({"status": [True]}, TypeError, "status must be several of type int, got [True]"),
        ({"largest_body": -1}, ValueError, "largest_body must be >= 0, got -1"),
        ({"largest_body": float("nan")}, ValueError, "largest_body must be >= 0, got nan"),
        ({"largest_body": True}, TypeError, "largest_body must be a number, got True"),
    ],
)
def test_bad_input(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        HttpxTransport(**{"policy": Timeout(1)} | options)
    assert str(caught.value) == message


def test_httpx_is_imported_when_the_transport_is() -> None:
    code = (
        "import sys, trio_orchestrator, trio_orchestrator.policies.stack, trio_orchestrator.queue.opening\n"
        "assert 'httpx' not in sys.modules\n"
        "from trio_orchestrator.transport import HttpxTransport\n"
        "assert 'httpx' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
