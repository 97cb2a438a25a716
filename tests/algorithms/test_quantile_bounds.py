"""For how long a duration is remembered."""

from __future__ import annotations

import math

from trio_orchestrator.algorithms.quantile import Quantile


def test_a_duration_is_remembered_for_half_the_window_to_all_of_it() -> None:
    recent = Quantile(window=60).recent()
    recent.add(1.0, 0.0)
    assert recent.count(math.nextafter(60.0, 0)) == 1
    recent.add(1.0, math.nextafter(60.0, 0))
    assert [recent.count(now) for now in (60.0, math.nextafter(90.0, 0), 90.0)] == [1, 1, 0]
