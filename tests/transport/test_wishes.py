"""What the server wishes: gates and limiters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
import pytest
import trio

from tests.transport.line import URL, Answer, Bare, Jury, Line, Nest, T, Ts, client, every_second
from trio_orchestrator.abc import Policy
from trio_orchestrator.errors import RejectedError
from trio_orchestrator.policies.http import http_transient
from trio_orchestrator.policies.verdict import Judge
from trio_orchestrator.queue.gates import Cooldown
from trio_orchestrator.testing import run_virtual

NOW = 1_445_412_480.0  # Wed, 21 Oct 2015 07:28:00 GMT


class Pace:
    """Lets one request through a second, and keeps what it is told."""

    def __init__(self, every: float = 0) -> None:
        self.told: list[tuple[str, float, float]] = []
        self._every = every
        self._next = 0.0

    async def acquire(self) -> None:
        self._next = max(self._next, trio.current_time()) + self._every
        await trio.sleep_until(self._next - self._every)

    def hold(self, seconds: float) -> None:
        self.told.append(("hold", trio.current_time(), seconds))

    def observe(self, remaining: float, reset_after: float) -> None:
        self.told.append(("observe", remaining, reset_after))


# --------------------------------------------------------------------------------------------------------- gates


async def get_at(http: httpx.AsyncClient, delay: float, url: str, ends: list[tuple[float, int]]) -> None:
    await trio.sleep(delay)
    response = await http.get(url)
    ends.append((trio.current_time(), response.status_code))


def test_the_retry_after_of_one_request_holds_back_the_others_of_its_host() -> None:
    line = Line(Answer(429, Retry_After="5"), 200)
    ends: list[tuple[float, int]] = []

    async def main() -> None:
        http = client(line, cooldown=Cooldown(ramp=0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(get_at, http, 0, URL, ends)
            nursery.start_soon(get_at, http, 1, URL + "other", ends)
            nursery.start_soon(get_at, http, 2, "http://example.com/", ends)
            nursery.start_soon(get_at, http, 6, URL, ends)

    run_virtual(main)
    assert line.starts == [0, 2, 5, 5, 6]
    assert ends == [(2, 200), (5, 200), (5, 200), (6, 200)]


def test_the_key_is_a_matter_of_choice() -> None:
    line = Line(Answer(429, Retry_After="5"), 200)
    ends: dict[str, float] = {}

    async def get_as(http: httpx.AsyncClient, tenant: str, path: str) -> None:
        await http.get(URL + path, headers={"X-Tenant": tenant})
        ends[tenant + path] = trio.current_time()

    async def main() -> None:
        http = client(line, cooldown=Cooldown(ramp=0), key=lambda request: request.headers["X-Tenant"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(get_as, http, "a", "1")
            await trio.sleep(1)
            nursery.start_soon(get_as, http, "a", "2")
            nursery.start_soon(get_as, http, "b", "1")

    run_virtual(main)
    assert ends == {"a1": 5, "a2": 5, "b1": 1}


def test_a_cooldown_is_shared_with_others_and_reopens_over_its_ramp() -> None:
    line = Line(200)
    cooldown = Cooldown(ramp=2)

    async def main() -> None:
        cooldown.gate("example.org").shut(3)
        http = client(line, cooldown=cooldown)
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(http.get, URL)

    run_virtual(main)
    assert line.starts[0] == 3
    assert 3 < line.starts[5] < line.starts[-1] <= 5.5
    assert len(set(line.starts[:10])) >= 5  # not in a herd


@pytest.mark.parametrize("status", [200, 403, 429, 500, 503])
def test_only_429_and_503_shut_the_gate_whatever_counts_as_a_failure(status: int) -> None:
    cooldown = Cooldown(ramp=0)
    line = Line(Answer(status, Retry_After="5"))

    async def main() -> None:
        await client(line, Bare(), cooldown=cooldown, status=[]).get(URL)
        assert cooldown.gate("example.org").opens_at(0) == (5 if status in {429, 503} else -float("inf"))

    run_virtual(main)


@pytest.mark.parametrize("wish", ["0", "soon", "-1", ""])
def test_nonsense_and_nothing_shut_nothing(wish: str) -> None:
    cooldown = Cooldown(ramp=0)

    async def main() -> None:
        await client(Line(Answer(429, Retry_After=wish)), Bare(), cooldown=cooldown).get(URL)
        assert cooldown.gate("example.org").is_open

    run_virtual(main)


def test_the_wait_at_the_gate_is_no_part_of_an_attempt() -> None:
    """Else a polite client would look, to its own time limit and its breaker, like a hung server."""
    line = Line(Answer(429, Retry_After="10"), 200)
    jury = Jury(Judge(http_transient))
    ends: list[tuple[float, int]] = []

    async def main() -> None:
        http = client(line, Nest(every_second(attempt_timeout=3), jury), cooldown=Cooldown(ramp=0))
        async with trio.open_nursery() as nursery:
            for delay in (0, 1, 2, 3):
                nursery.start_soon(get_at, http, delay, URL, ends)

    run_virtual(main)
    assert line.starts == [0, 10, 10, 10, 10]
    assert ends == [(10, 200)] * 4
    assert [verdict.value for verdict in jury.verdicts] == ["failure", *["success"] * 4]


def test_a_gate_that_was_shut_on_the_way_through_the_policy_holds() -> None:
    """The request waits in a policy (a limit of ours) when another one is told to go away."""
    line = Line(Answer(429, Retry_After="10"), 200)
    limit = trio.CapacityLimiter(1)

    class OneAtATime(Policy):
        async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
            async with limit:
                return await fn(*args)

    ends: list[tuple[float, int]] = []

    async def main() -> None:
        http = client(line, OneAtATime(), cooldown=Cooldown(ramp=0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(get_at, http, 0, URL, ends)
            nursery.start_soon(get_at, http, 0, URL, ends)

    run_virtual(main)
    assert line.starts == [0, 10]


def test_an_attempt_that_cannot_wait_so_long_is_refused_at_once() -> None:
    line = Line(503, 200)
    cooldown = Cooldown(ramp=0)
    jury = Jury(Judge(http_transient))

    async def main() -> None:
        http = client(line, Nest(every_second(attempt_timeout=3), jury), cooldown=cooldown)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shut_later)
            with pytest.raises(RejectedError, match=r"cooldown of 'example.org': shut for 9.5 s") as caught:
                await http.get(URL)
            assert caught.value.retry_after == 9.5
            assert trio.current_time() == 1

    async def shut_later() -> None:
        await trio.sleep(0.5)
        cooldown.gate("example.org").shut(10)

    run_virtual(main)
    assert line.starts == [0]
    assert [verdict.value for verdict in jury.verdicts] == ["failure", "neutral"]


def test_a_retry_of_refusals_waits_for_the_gate_in_its_pause() -> None:
    line = Line(503, 200)
    cooldown = Cooldown(ramp=0)

    async def main() -> None:
        on = lambda error: http_transient(error) or isinstance(error, RejectedError)  # noqa: E731
        http = client(line, every_second(on=on, attempt_timeout=3), cooldown=cooldown)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shut_later)
            assert (await http.get(URL)).status_code == 200

    async def shut_later() -> None:
        await trio.sleep(0.5)
        cooldown.gate("example.org").shut(10)

    run_virtual(main)
    assert line.starts == [0, 10.5]


# ------------------------------------------------------------------------------------------------------ limiters


def test_resilience4j_1565_every_attempt_takes_its_turn() -> None:
    """With the limiter outside of the retry, the repeated ones went past it."""
    line = Line(503, 503, 200)

    async def main() -> None:
        http = client(line, every_second(), limiter=Pace(every=4))
        await http.get(URL)
        await http.get(URL)

    run_virtual(main)
    assert line.starts == [0, 4, 8, 12]


def test_a_limiter_hears_how_much_is_left_and_when_to_stop() -> None:
    pace = Pace()
    reset = str(int(NOW) + 60)
    line = Line(
        Answer(200, RateLimit='"default";r=50;t=30'),
        Answer(200, X_RateLimit_Remaining="5", X_RateLimit_Reset=reset, Date="Wed, 21 Oct 2015 07:28:10 GMT"),
        Answer(200, X_RateLimit_Remaining="4", X_RateLimit_Reset=reset),
        Answer(404, RateLimit_Remaining="3", RateLimit_Reset="9"),
        Answer(200, RateLimit_Remaining="3"),
        Answer(200, RateLimit_Remaining="nonsense", RateLimit_Reset="9"),
        Answer(429, Retry_After="7", RateLimit_Remaining="0", RateLimit_Reset="8"),
        Answer(503, Retry_After="0"),
        200,
    )

    async def main() -> None:
        http = client(line, limiter=pace, wall=lambda: NOW + 20)
        for _ in range(7):
            await http.get(URL)

    run_virtual(main)
    assert pace.told == [
        ("observe", 50, 30),
        ("observe", 5, 50),
        ("observe", 4, 40),
        ("observe", 3, 9),
        ("observe", 0, 8),
        ("hold", 0, 7),
    ]


def test_the_gate_comes_before_the_limiter() -> None:
    line = Line(200)
    cooldown, pace = Cooldown(ramp=0), Pace(every=1)

    async def main() -> None:
        cooldown.gate("example.org").shut(5)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(client(line, cooldown=cooldown, limiter=pace).get, URL)

    run_virtual(main)
    assert line.starts == [5, 6, 7]
