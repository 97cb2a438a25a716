"""A sliding window through its public face: whatever is asked, cancelled and changed, no window holds too much."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.policies.rate import RateLimiter, SlidingWindow
from trio_orchestrator.testing import run_virtual

TIMES = st.integers(0, 64).map(lambda step: step / 32)  # exact in binary
Arrival = tuple[float, int, float]


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    """When each comes, for how much, and how long it has patience."""
    patience = st.just(float("inf")) | TIMES
    return draw(st.lists(st.tuples(TIMES, st.integers(1, 3), patience), max_size=30))


async def let_in(limiter: RateLimiter | SlidingWindow, asked: list[Arrival]) -> list[tuple[float, int]]:
    """Return what was granted, and when."""
    granted: list[tuple[float, int]] = []

    async def one(at: float, cost: int, patience: float) -> None:
        await trio.sleep_until(at)
        with trio.move_on_after(patience):
            await limiter.acquire(cost)
            granted.append((trio.current_time(), cost))

    async with trio.open_nursery() as nursery:
        for each in asked:
            nursery.start_soon(one, *each)
    return sorted(granted)


@given(
    limit=st.integers(3, 6),
    per=st.sampled_from([0.5, 1.0, 2.0]),
    asked=arrivals(),
    changes=st.lists(st.tuples(TIMES, st.integers(3, 6)), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_window_of_any_phase_holds_more_than_the_limit(
    limit: int, per: float, asked: list[Arrival], changes: list[tuple[float, int]], seed: int
) -> None:
    limits = [(0.0, limit)]

    async def main() -> None:
        limiter = SlidingWindow(limit, per)

        async def change(at: float, new: int) -> None:
            await trio.sleep_until(at)
            limiter.change(limit=new)
            limits.append((at, new))

        async with trio.open_nursery() as nursery:
            for each in changes:
                nursery.start_soon(change, *each)
            granted = await let_in(limiter, asked)
        for end, _ in granted:
            weight = sum(cost for at, cost in granted if end - per < at <= end)
            before = [new for at, new in limits if at < end]
            now = [new for at, new in limits if at == end]
            assert weight <= max(before[-1:] + now)
        counts = limiter.statistics()
        assert counts.waiting == counts.refused == 0
        assert counts.granted + counts.cancelled == len(asked)

    run_virtual(main, seed=seed)


@given(limit=st.sampled_from([1, 2, 4, 8]), burst=st.integers(3, 6), asked=arrivals(), seed=st.integers(0, 2**32 - 1))
def test_in_any_time_a_bucket_lets_in_its_burst_and_its_rate(
    limit: int, burst: int, asked: list[Arrival], seed: int
) -> None:
    async def main() -> None:
        limiter = RateLimiter(limit, burst=burst)
        granted = await let_in(limiter, asked)
        for first, (start, _) in enumerate(granted):
            weight = 0
            for at, cost in granted[first:]:
                weight += cost
                assert weight <= burst + limit * (at - start)
        counts = limiter.statistics()
        assert counts.granted + counts.cancelled == len(asked)
        await trio.sleep(burst / limit)
        assert limiter.is_idle

    run_virtual(main, seed=seed)


@given(asked=st.lists(TIMES, min_size=1, max_size=60), limit=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_nobody_waits_longer_than_it_must(asked: list[float], limit: int, seed: int) -> None:
    """The k-th start is at the k-th arrival, or when the start `limit` before it leaves the window."""

    async def main() -> None:
        granted = await let_in(SlidingWindow(limit), [(at, 1, float("inf")) for at in asked])
        expected: list[float] = []
        for number, at in enumerate(sorted(asked)):
            expected.append(max(at, expected[number - limit] + 1 if number >= limit else 0))
        assert [at for at, _ in granted] == expected

    run_virtual(main, seed=seed)
