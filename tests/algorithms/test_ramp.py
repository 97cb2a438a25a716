"""Ramps: how many may go, and when one more may. A step must move time, or the alarm that waits for it spins."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.ramp import Ramp

starts = st.floats(0, 1e6)
lengths = st.floats(1e-3, 1e5)
limits = st.integers(1, 1000)
fractions = st.floats(0, 1)


def test_the_limit_grows_from_one() -> None:
    ramp = Ramp(100.0, 10.0)
    assert [ramp.allowed(5, 100.0 + t) for t in range(11)] == [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, math.inf]
    assert [ramp.next_step(5, 100.0 + t) - 100 for t in (0, 1, 4, 9)] == [4, 4, 6, 10]


@given(start=starts, seconds=lengths, limit=limits, fraction=fractions)
def test_bounds(start: float, seconds: float, limit: int, fraction: float) -> None:
    ramp = Ramp(start, seconds)
    now = start + fraction * seconds
    allowed = ramp.allowed(limit, now)
    if now - start >= seconds:
        assert allowed == math.inf
    else:
        assert 1 <= allowed <= limit
        assert allowed <= max(1, limit * (now - start) / seconds + 1e-6)
        assert allowed > limit * (now - start) / seconds - 1


@given(start=starts, seconds=lengths, limit=limits, fractions=st.lists(fractions, min_size=2))
def test_the_limit_never_falls(start: float, seconds: float, limit: int, fractions: list[float]) -> None:
    ramp = Ramp(start, seconds)
    allowed = [ramp.allowed(limit, start + fraction * seconds) for fraction in sorted(fractions)]
    assert allowed == sorted(allowed)


@given(
    start=st.floats(0, 1e9),
    seconds=st.floats(1e-6, 1e9),
    limit=st.one_of(limits, st.sampled_from([0, math.inf, 10**18])),
    fraction=st.floats(-1, 3),
)
def test_the_next_step_is_always_later_and_at_most_the_end(
    start: float, seconds: float, limit: float, fraction: float
) -> None:
    ramp = Ramp(start, seconds)
    now = start + fraction * seconds
    step = ramp.next_step(limit, now)
    assert now < step < math.inf
    assert step <= max(start + seconds, math.nextafter(now, math.inf))


@given(start=starts, seconds=lengths, limit=st.integers(1, 50))
def test_a_few_steps_lead_to_the_end(start: float, seconds: float, limit: int) -> None:
    ramp = Ramp(start, seconds)
    now, steps = start, 0
    while ramp.allowed(limit, now) < math.inf:
        now = ramp.next_step(limit, now)
        steps += 1
        assert steps <= 2 * limit + 10, f"{steps} steps, and still at {now}"
    assert now <= math.nextafter(start + seconds, math.inf)


@given(seconds=lengths, limit=limits, fraction=fractions)
def test_at_the_next_step_one_more_may_go(seconds: float, limit: int, fraction: float) -> None:
    assume(fraction < 1)
    ramp = Ramp(0.0, seconds)
    now = fraction * seconds
    assert ramp.allowed(limit, ramp.next_step(limit, now)) > ramp.allowed(limit, now)


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.7, 1 / 3, 1e-9])
@pytest.mark.parametrize("limit", [3, 7, 10, 49])
def test_float_steps_are_not_missed(seconds: float, limit: int) -> None:
    """`0.1 * 3 / 3` is not `0.1`: the step computed for the clock must be a step by the formula, too."""
    ramp = Ramp(0.0, seconds)
    now = 0.0
    for allowed in range(2, limit):
        now = ramp.next_step(limit, now)
        assert now == pytest.approx(seconds * allowed / limit)
        assert ramp.allowed(limit, now) == allowed
    assert ramp.next_step(limit, now) == pytest.approx(seconds)


@pytest.mark.parametrize("limit", [0, math.inf])
def test_no_division_by_zero_or_infinity(limit: float) -> None:
    ramp = Ramp(5.0, 10.0)
    assert ramp.allowed(limit, 5.0) == 1
    assert ramp.next_step(limit, 5.0) == 15.0
    assert ramp.allowed(limit, 15.0) == math.inf
