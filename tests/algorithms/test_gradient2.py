"""Gradient2 beside the published rule, which runs away."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulations.runaway import PublishedGradient2, feed, of_capacity, saturate
from trio_orchestrator.abc import Limit, Sample
from trio_orchestrator.algorithms.gradient2 import Gradient2

THEIRS, OURS = PublishedGradient2(), Gradient2()


def step_to(slow: float) -> list[float]:
    return feed(OURS, lambda limit, update: 0.1 if update < 50 else slow, 1000)


def test_netflix_134_the_published_rule_runs_away_and_ours_does_not() -> None:
    """A service that serves 50 at once, and a full house."""
    theirs, ours = feed(THEIRS, of_capacity, 1000), feed(OURS, of_capacity, 1000)
    assert [round(theirs[update], 1) for update in (100, 500, 1000)] == [84.7, 170.0, 200.0]
    assert max(ours) < 79.01
    assert ours[100] == pytest.approx(79, abs=0.1)
    assert [ours[update] for update in (500, 1000)] == pytest.approx([79, 79])


def test_netflix_137_time_outs_that_all_take_a_second_are_no_stable_latency() -> None:
    def latency(limit: float, update: int) -> float:
        return 1.0

    def all_dropped(update: int) -> bool:
        return True

    theirs = feed(THEIRS, latency, 250, dropped=all_dropped)
    assert theirs.index(200) == 225
    assert set(feed(OURS, latency, 250, dropped=all_dropped)) == {20}
    assert feed(Gradient2(initial=200), latency, 250, dropped=all_dropped)[-1] == 20


def test_without_a_queue_both_grow_to_the_maximum() -> None:
    for rule in (THEIRS, OURS):
        assert feed(rule, lambda limit, update: 0.1, 300)[-1] == 200


def test_the_published_rule_recovers_from_a_step_of_the_latency() -> None:
    theirs = feed(THEIRS, lambda limit, update: 0.1 if update < 50 else 0.2, 400)
    assert min(theirs[51:]) == pytest.approx(28.4, abs=0.05)
    assert theirs.index(min(theirs[51:])) == 97
    assert next(update for update in range(97, 400) if theirs[update] >= 200) == 353
    theirs = feed(THEIRS, lambda limit, update: 0.1 if update < 50 else 0.4, 500)
    assert min(theirs[51:]) == 20
    assert next(update for update in range(100, 500) if theirs[update] >= 200) == 477


@pytest.mark.parametrize("slow", [0.2, 0.4, 1.0])
def test_ours_recovers_from_a_step_of_the_latency_in_less_time(slow: float) -> None:
    ours = step_to(slow)
    assert min(ours[51:]) == 20
    assert next(update for update in range(100, 1000) if ours[update] >= 200) < 352
    assert set(ours[352:600]) == {200}


def test_ours_comes_back_when_the_service_has_recovered() -> None:
    """The capacity falls from 50 to 10 and comes back: the latency learned meanwhile is forgotten at the next probe."""

    def latency(limit: float, update: int) -> float:
        return max(1.0, limit / (10 if 500 <= update < 1500 else 50))

    limits = feed(OURS, latency, 20_000)
    assert limits[499] == pytest.approx(79)
    assert max(limits[600:1500]) < 35  # 1.5 times what 20, the minimum, take there, and 4
    assert limits[-1] == pytest.approx(79)


@settings(max_examples=20)
@given(capacity=st.integers(30, 120), tolerance=st.floats(1, 4), queue=st.floats(1, 10))
def test_it_settles_where_the_queue_and_the_tolerance_say(capacity: int, tolerance: float, queue: float) -> None:
    rule = Gradient2(tolerance=tolerance, queue=queue, maximum=1000)
    limits = feed(rule, lambda limit, update: max(1.0, limit / capacity), 5000)
    assert max(limits) <= tolerance * capacity + queue + 1e-6


@pytest.mark.parametrize(("in_flight", "reason"), [(30, "growing"), (45, "queueing")])
def test_a_lull_teaches_a_higher_latency_and_a_full_house_does_not(in_flight: int, reason: str) -> None:
    """A third of 116 cannot queue, with a tolerance of 1.5; 40 % may."""
    control, now = Gradient2(initial=100).control(Random(1)), 0.0
    for _ in range(20):
        control.update(Sample(now, 0.1, int(control.limit), False))
        now += 0.1
    for _ in range(300):
        control.update(Sample(now, 0.14, in_flight, False))
        now += 0.14
    assert control.update(Sample(now, 0.18, int(control.limit), False))[1] == reason


def test_a_latency_that_is_less_than_half_of_the_usual_is_soon_usual() -> None:
    control, now = Gradient2(initial=20).control(Random(1)), 0.0
    for update in range(140):
        rtt = 1.0 if update < 100 else 0.1
        control.update(Sample(now, rtt, int(control.limit), False))
        now += rtt
    assert control.update(Sample(now, 0.4, int(control.limit), False))[1] == "queueing"


@pytest.mark.parametrize(("rule", "low", "high"), [(OURS, 20, 35), (THEIRS, 45, 200)], ids=["ours", "theirs"])
def test_netflix_134_in_the_real_limiter(rule: Limit, low: float, high: float) -> None:
    measured = saturate(rule, capacity=15, seconds=12)
    assert low <= measured.limit_since(8) <= high
    assert low / 15 * 0.09 <= measured.rtt_since(8) <= high / 15 * 0.11
