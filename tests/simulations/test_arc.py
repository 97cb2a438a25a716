"""Vector's twelve scenarios: its rule and ours, through the real limiter, against the ranges that Vector published."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulations.arc import FIGURES, SCENARIOS, PublishedARC, Trace, load_scenarios, simulate
from trio_orchestrator.algorithms.arc import ARC

DATA = load_scenarios()
every_scenario = pytest.mark.parametrize("name", SCENARIOS)
two_seeds = pytest.mark.parametrize("seed", range(2))


def misfits(trace: Trace, published: dict[str, list[float]], instead: dict[str, Any]) -> dict[str, float]:
    """Return the figures that are out of their range: the published one, or, where there is one, that of ours."""
    ranges = published | {figure: entry["range"] for figure, entry in instead.items()}
    found = {figure: trace.figure(figure) for figure in ranges}
    return {figure: value for figure, value in found.items() if not _within(value, *ranges[figure])}


def _within(value: float, low: float, high: float) -> bool:
    return low - 1e-9 <= value <= high + 1e-9


@two_seeds
@every_scenario
def test_the_published_rule_has_the_published_figures(name: str, seed: int) -> None:
    trace = simulate(SCENARIOS[name], PublishedARC(), hold=True, seed=seed)
    assert misfits(trace, DATA[name]["published"], DATA[name].get("port", {})) == {}


@two_seeds
@every_scenario
def test_our_rule_has_the_published_figures(name: str, seed: int) -> None:
    trace = simulate(SCENARIOS[name], ARC(), seed=seed)
    assert misfits(trace, DATA[name]["published"], DATA[name].get("ours", {})) == {}
    assert len(trace.rtt) == SCENARIOS[name].requests


@every_scenario
def test_a_range_of_our_own_stands_beside_a_published_one_and_says_why(name: str) -> None:
    entry = DATA[name]
    assert entry.keys() <= {"params", "published", "port", "ours"}
    assert entry["published"].keys() <= FIGURES
    for figure, own in (entry.get("port", {}) | entry.get("ours", {})).items():
        assert figure in entry["published"]
        assert len(own["reason"]) > 20


def test_there_are_twelve() -> None:
    assert len(SCENARIOS) == 12


def test_vector_26123_an_attempt_is_measured_and_not_the_retries_around_it() -> None:
    """A backend of 100 ms that turns down what comes above 5: the latency stays true, and the limit finds the 5."""
    trace = simulate(SCENARIOS["defers-at-high-concurrency"], ARC())
    assert trace.figure("rtt.max") <= 0.102
    assert 5 <= trace.figure("limit.mean") <= 6
    assert trace.seconds < 12  # of 10 that five at a time need at the least
