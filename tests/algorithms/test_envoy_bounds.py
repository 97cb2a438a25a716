"""How many have to be in flight for Envoy's gradient to grow, and which windows count as one after the other."""

from __future__ import annotations

import math
from random import Random

import pytest

from trio_orchestrator.abc import Control, Sample
from trio_orchestrator.algorithms.envoy import EnvoyGradient


def grown(rule: EnvoyGradient, limit: float) -> tuple[Control, float]:
    """Return a control whose limit has grown to `limit`, and the time."""
    control, now = rule.control(Random(1)), 0.0
    while control.limit < limit:
        control.update(Sample(now, 0.125, int(control.limit), False))
        now += 0.125
    return control, now


AT_ONCE = EnvoyGradient(requests=1, interval=0, every=math.inf, jitter=0)


@pytest.mark.parametrize(("in_flight", "answer"), [(4, (13, "growing")), (3, (8, "app-limited"))])
def test_half_of_the_limit_is_enough_to_grow_and_less_is_not(in_flight: int, answer: tuple[float, str]) -> None:
    control, now = grown(AT_ONCE, 8)
    assert control.update(Sample(now, 0.125, in_flight, False)) == answer


def test_five_windows_at_the_minimum_in_a_row_are_counted_from_the_first_of_them() -> None:
    control, now = grown(AT_ONCE, 8)
    answers = [(0.0, "")]
    while answers[-1][1] != "measuring":
        answers.append(control.update(Sample(now, 10.0, int(control.limit), False)))
        now += 10.0
    assert answers[1:] == [
        (6, "queueing"),
        (4, "queueing"),
        (3, "queueing"),
        *[(3, "steady")] * 3,
        (3, "measuring"),
    ]
    control.update(Sample(now, 10.0, 3, False))  # that is the new measure
    slower = [control.update(Sample(now + 10 + n * 1000, 1000.0, 3, False))[1] for n in range(5)]
    assert slower == [*["steady"] * 4, "measuring"]


def test_it_measures_again_at_the_instant_at_which_it_is_due() -> None:
    rule = EnvoyGradient(requests=1, interval=0, every=2, jitter=0)
    for end, reason in ((2.125, "measuring"), (math.nextafter(2.125, 0), "growing")):
        control, _ = grown(rule, 5)  # measured at 0.125
        assert control.update(Sample(2.0, end - 2.0, 5, False))[1] == reason


def test_a_call_without_a_duration_queues_nowhere() -> None:
    control, now = grown(AT_ONCE, 5)
    assert control.update(Sample(now, 0.0, 5, False)) == (13, "growing")


def test_it_does_no_more_than_double() -> None:
    control, now = grown(AT_ONCE, 5)
    assert control.update(Sample(now, 1 / 64, 5, False)) == (13, "growing")
