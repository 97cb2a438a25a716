"""What Vegas says of each of its steps, and steps of less than one."""

from __future__ import annotations

from random import Random

import pytest

from trio_orchestrator.abc import Sample
from trio_orchestrator.algorithms.vegas import Vegas


def second(rule: Vegas, rtt: float) -> tuple[float, str]:
    """Return what a second round trip makes of the limit, after one of a second."""
    control = rule.control(Random(1))
    assert control.update(Sample(0, 1.0, 20, False)) == (20, "steady")
    return control.update(Sample(1, rtt, 20, False))


@pytest.mark.parametrize(
    ("rtt", "limit", "reason"),
    [(1.0, 26, "growing"), (1.1, 21, "growing"), (1.25, 20, "steady"), (2.0, 19, "queueing")],
)
def test_each_step_has_its_reason(rtt: float, limit: float, reason: str) -> None:
    assert second(Vegas(), rtt) == (limit, reason)


def test_a_part_of_a_step_has_the_reason_of_the_whole() -> None:
    assert second(Vegas(smoothing=0.5), 1.1) == (20.5, "growing")
    assert second(Vegas(smoothing=0.5), 2.0) == (19.5, "queueing")
