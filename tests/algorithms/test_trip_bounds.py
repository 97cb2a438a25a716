"""The edges of the rules that open a circuit."""

from __future__ import annotations

from trio_orchestrator.algorithms.trip import Consecutive, Ratio


def test_several_rules_are_empty_when_all_of_them_are() -> None:
    tally = (Ratio(0.9, seconds=10) | Consecutive(3)).tally()
    tally.record(0.0, True, False)
    assert not tally.is_empty(3600.0)  # one failure in a row is still remembered
    tally.record(3600.0, False, False)
    assert not tally.is_empty(3600.0)  # and now the latest call
    assert tally.is_empty(7200.0)
