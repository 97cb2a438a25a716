from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.simulations.runaway import feed
from trio_orchestrator.abc import Sample
from trio_orchestrator.algorithms.aimd import AIMD


def test_it_grows_by_1_a_round_trip_and_shrinks_by_a_tenth_on_a_drop() -> None:
    limits = feed(AIMD(), lambda limit, update: 0.1, 12, dropped=lambda update: update >= 10)
    assert limits == [*range(20, 31), 27, 24.3]


def test_a_round_trip_of_many_adds_no_more_than_one_of_a_few() -> None:
    control = AIMD().control(Random(1))
    for _ in range(20):
        control.update(Sample(0, 0.1, 20, False))
    assert control.limit == 21
    for number in range(20):
        control.update(Sample(0.1 + number / 1000, 0.1, 20, False))
    assert control.limit == 22


def test_an_old_drop_puts_off_the_growth() -> None:
    """It is no round trip without a drop, although the limit has fallen already for what started then."""
    control = AIMD().control(Random(1))
    assert control.update(Sample(0, 1, 20, True)) == (18, "dropped")
    assert control.update(Sample(0, 1.5, 20, True)) == (18, "same round trip")
    assert control.update(Sample(1.2, 0.5, 18, False)) == (18, "same round trip")
    assert control.update(Sample(1.5, 0.5, 18, False)) == (19, "growing")


def test_an_answer_that_is_too_slow_is_a_drop() -> None:
    limits = feed(AIMD(too_slow=2), lambda limit, update: 2 if update < 3 else 2.1, 5)
    assert limits[:4] == [20, 21, 22, 23]
    assert limits[4] == 23 * 0.9
    assert feed(AIMD(), lambda limit, update: 4.9, 1) == [20, 21]


@given(capacity=st.integers(2, 150), shrink=st.floats(0.3, 0.95), grow=st.floats(0.5, 3))
def test_it_swings_below_the_point_where_drops_begin(capacity: int, shrink: float, grow: float) -> None:
    rule = AIMD(shrink=shrink, grow=grow)
    control, now, limits = rule.control(Random(1)), 0.0, []
    for _ in range(600):
        limits.append(control.update(Sample(now, 0.1, int(control.limit), control.limit > capacity))[0])
        now += 0.1
    assert capacity * shrink - 1e-9 <= min(limits[400:]) <= max(limits[400:]) <= capacity + grow
