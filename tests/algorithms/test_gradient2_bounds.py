"""How much room a probe makes."""

from __future__ import annotations

from random import Random

import pytest

from trio_orchestrator.abc import Sample
from trio_orchestrator.algorithms.gradient2 import Gradient2


def test_a_probe_leaves_half_of_what_is_served_without_a_queue() -> None:
    control, now = Gradient2(initial=100, maximum=100, queue=4, tolerance=1.5).control(Random(1)), 0.0
    while control.update(Sample(now, 0.125, int(control.limit), False))[1] != "probing":
        now += 0.125
    assert control.limit == pytest.approx((100 - 4) / (2 * 1.5))
