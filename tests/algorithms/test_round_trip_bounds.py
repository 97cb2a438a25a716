"""The edges of what the adaptive limits share: half of a limit in flight, and the attempt at which a probe is due."""

from __future__ import annotations

from random import Random

import pytest

from trio_orchestrator.abc import Sample
from trio_orchestrator.algorithms.aimd import AIMD
from trio_orchestrator.algorithms.vegas import Vegas


class Fixed:
    """A random source that always draws the least, or the greatest."""

    def __init__(self, share: float) -> None:
        self.share = share

    def random(self) -> float:
        return self.share

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.share


def test_half_of_the_limit_is_enough_to_move_it_and_less_is_not() -> None:
    for in_flight, answer in ((10, (21, "growing")), (9, (20, "app-limited"))):
        assert AIMD(initial=20).control(Random(1)).update(Sample(0, 0.1, in_flight, False)) == answer


@pytest.mark.parametrize(("share", "times"), [(0.0, 15), (1.0, 30)])
def test_a_probe_is_due_after_fifteen_to_thirty_times_the_limit(share: float, times: int) -> None:
    control = Vegas(initial=20, maximum=20).control(Fixed(share))
    reasons = [control.update(Sample(n / 8, 1 / 8, 20, False))[1] for n in range(1300)]
    first = reasons.index("probing")
    assert first == times * 20 - 1
    after = reasons.index("probed")
    assert after == first + 10
    assert reasons.index("probing", after) == after + times * 20  # counted anew


def test_a_slow_drop_counts_in_a_probe_too_once_something_was_answered() -> None:
    control, now = Vegas(initial=20, maximum=20).control(Fixed(0.0)), 0.0
    while control.update(Sample(now, 1 / 8, 20, False))[1] != "probing":
        now += 1 / 8
    now += 1 / 8
    assert control.update(Sample(now - 1, 1.0, 20, True))[1] == "same round trip"
    assert control.update(Sample(now, 1 / 8, 7, False)) == (7, "probing")
    assert control.update(Sample(now - 1, 1.25, 7, True)) == (7, "dropped")
    answers = [control.update(Sample(now + n / 8, 1 / 8, 7, False)) for n in range(1, 10)]
    assert answers == [*[(7, "probing")] * 8, (18, "probed")]


def test_in_a_probe_too_a_hundred_drops_of_one_round_trip_are_one() -> None:
    control, now = Vegas(initial=20, maximum=20, shrink=0.5).control(Fixed(0.0)), 0.0
    while control.update(Sample(now, 1 / 8, 20, False))[1] != "probing":
        now += 1 / 8
    limits = list[float]()
    for _ in range(2):
        now += 1 / 8
        limits.append(control.update(Sample(now, 1 / 8, 7, False))[0])
        limits += [control.update(Sample(now, 1 / 8 + n / 1000, 7, True))[0] for n in range(100)]
    assert limits == [7] * 102 + [5] * 100  # 20, then 10, then 5: no probe may be above what it comes back to
