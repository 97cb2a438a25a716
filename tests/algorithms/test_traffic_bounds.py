"""The instant at which a count leaves the window."""

from __future__ import annotations

import math

from trio_orchestrator.algorithms.traffic import Traffic


def test_a_call_leaves_at_the_end_of_the_window() -> None:
    traffic = Traffic(30.0, 3600, 0.0)
    traffic.called(0.0)
    traffic.called(29.5)
    assert traffic.counts(math.nextafter(30.0, 0)).calls == 2
    assert traffic.counts(30.0).calls == 1


def test_a_pause_leaves_at_the_end_of_the_window() -> None:
    traffic = Traffic(30.0, 3600, 0.0)
    traffic.retried(0.0, 5.0)
    assert traffic.pauses(math.nextafter(30.0, 0)) == [5.0]
    assert traffic.pauses(30.0) == []
