"""Cancelled wherever it may be, a request leaves nothing open, nothing held, and is not sent again."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio

from tests.transport.line import URL, Answer, Copies, Line, Nest, client, every_second
from trio_orchestrator.abc import Policy
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.queue.gates import Cooldown
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

POLICIES = [
    every_second(),
    every_second(attempt_timeout=50, timeout=100),
    Nest(Timeout(100), every_second()),
    Nest(Copies(2, apart=1), every_second()),
]


class Turns:
    """A limiter that counts who is in it."""

    def __init__(self) -> None:
        self.inside = 0

    async def acquire(self) -> None:
        self.inside += 1
        try:
            await trio.sleep(0.25)
        finally:
            self.inside -= 1

    def hold(self, seconds: float) -> None:
        pass

    def observe(self, remaining: float, reset_after: float) -> None:
        pass


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("policy", POLICIES, ids=["retry", "guarded", "timeout", "hedge"])
def test_cancelled_at_every_checkpoint(policy: Policy, method: str) -> None:
    async def scenario(injector: CancelAt) -> None:
        slow = Answer(503, b"a", b"b", body_seconds=0.5, Retry_After="2")
        line = Line(slow, httpx.ReadError(""), Answer(200, b"a", b"b", body_seconds=0.5), seconds=0.5)
        turns, cooldown = Turns(), Cooldown(ramp=0)
        ends: list[int] = []
        with injector.watch() as scope:
            response = await client(line, policy, limiter=turns, cooldown=cooldown).request(method, URL)
            ends.append(response.status_code)
        assert scope.cancelled_caught is injector.fired
        assert ends == ([] if injector.fired else [200 if method == "GET" else 503])
        assert line.open == []
        assert turns.inside == 0
        assert cooldown.gate("example.org").opens_at(0) <= 2 + 3  # it forgets nothing that the server said
        starts = len(line.starts)
        await trio.sleep(100)
        assert len(line.starts) == starts
        assert method == "GET" or starts <= 1

    hedged = policy is POLICIES[-1]
    points = cancelled_everywhere(scenario, seeds=range(2), want=(lambda task: True) if hedged else None)
    assert points >= (30 if method == "GET" else 12)


@pytest.mark.parametrize(("cancel_at", "starts"), [(0.5, [0]), (1.5, [0]), (2.5, [0]), (6.5, [0, 5])])
def test_httpx_1461_cancelled_in_flight_in_the_body_or_in_the_pause(cancel_at: float, starts: list[float]) -> None:
    """It kept its place in the pool."""
    line = Line(Answer(503, b"a", body_seconds=1, Retry_After="3"), Answer(200, b"a", body_seconds=1), seconds=1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client(line).get, URL)
            await trio.sleep(cancel_at)
            nursery.cancel_scope.cancel()
        assert trio.current_time() == cancel_at
        assert line.open == []

    run_virtual(main)
    assert line.starts == starts


def test_a_response_is_closed_though_its_line_takes_its_time() -> None:
    """For some seconds, and not for ever: the goodbye cannot be cancelled from outside."""
    closing: list[float] = []

    class Reluctant(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            await trio.sleep_forever()
            yield b""

        async def aclose(self) -> None:
            try:
                await trio.sleep(seconds)
            finally:
                closing.append(trio.current_time())

    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(503, stream=Reluctant())

    async def main() -> None:
        with trio.move_on_after(1) as scope:
            await client(Slow()).get(URL)
        assert scope.cancelled_caught

    for seconds, closed_at in ((2.0, 3.0), (60.0, 6.0)):
        run_virtual(main)
        assert closing.pop() == closed_at
