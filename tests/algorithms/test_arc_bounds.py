"""What ARC takes for equal, what belongs to a round trip, and which drops are old."""

from __future__ import annotations

from random import Random

import pytest

from trio_orchestrator.abc import Sample
from trio_orchestrator.algorithms.arc import ARC


def fed(*rtts: float) -> list[tuple[float, str]]:
    control, now, answers = ARC(initial=20).control(Random(1)), 0.0, []
    for rtt in rtts:
        answers.append(control.update(Sample(now, rtt, int(control.limit), False)))
        now += rtt
    return answers


def test_half_a_microsecond_is_no_difference() -> None:
    assert fed(0.1, 0.1000004) == [(20, "steady"), (21, "growing")]
    assert fed(0.1, 0.1000006) == [(20, "steady"), (20, "steady")]


def test_the_latency_of_a_round_trip_is_that_of_its_own_attempts() -> None:
    control = ARC(initial=20).control(Random(1))
    assert control.update(Sample(0, 0.2, 20, False)) == (20, "steady")
    assert control.update(Sample(0.3, 0.1, 20, False)) == (21, "growing")
    assert control.update(Sample(0.4, 0.17, 21, False)) == (21, "steady")  # the mean of the past is 160 ms


@pytest.mark.parametrize(("start", "limit"), [(0.05, 18), (0.1, 18)])
def test_where_nothing_has_fallen_no_drop_is_old(start: float, limit: float) -> None:
    control = ARC(initial=20).control(Random(1))
    assert control.update(Sample(0, 0.1, 20, False)) == (20, "steady")
    assert control.update(Sample(start, 0.25, 20, True)) == (limit, "dropped")
