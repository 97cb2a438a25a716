"""A quantile of the recent past: what is old is forgotten, also if nobody adds anything."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trio_orchestrator.algorithms.quantile import Quantile, RecentQuantile

durations = st.floats(1e-6, 1e6)


def is_quantile(found: float, values: list[float], q: float) -> bool:
    """Tell whether it is the exact quantile, or a little more."""
    exact = sorted(values)[max(0, math.ceil(q * len(values)) - 1)]
    return exact < found < 1.11 * exact


@given(values=st.lists(durations, min_size=1, max_size=200), q=st.floats(0.01, 1))
def test_within_the_window_it_is_the_quantile_or_a_little_more(values: list[float], q: float) -> None:
    recent = Quantile(q, minimum=1).recent()
    for value in values:
        recent.add(value, 0)
    assert is_quantile(recent.at(29.9), values, q)


@given(value=durations)
def test_where_all_take_the_same_time_none_is_slow(value: float) -> None:
    recent = Quantile(0.5, minimum=1).recent()
    recent.add(value, 0)
    assert recent.at(0) > value


def test_until_the_minimum_was_seen_it_is_the_initial() -> None:
    recent = Quantile(0.5, minimum=3, initial=7).recent()
    assert recent.at(0) == 7
    for n in range(3):
        assert recent.at(n) == 7
        recent.add(1, n)
    assert 1 < recent.at(3) < 1.11


def test_it_expires_on_read() -> None:
    recent = Quantile(0.95, window=60, minimum=20).recent()
    for _ in range(20):
        recent.add(5, 1000)
    assert 5 < recent.at(1000) < 5.5
    assert recent.at(1060) == math.inf
    assert recent.count(1e9) == 0


@pytest.mark.parametrize("back", [31.0, 61.0, 900.0])
def test_the_clock_of_another_run_finds_it_new(back: float) -> None:
    recent = Quantile(0.95, window=60, minimum=20).recent()
    for _ in range(20):
        recent.add(5, 1000)
    assert recent.count(1000) == 20
    assert recent.at(1000 - back) == math.inf
    recent.add(1, 1000 - back)
    assert recent.count(1000 - back) == 1


def test_new_latencies_replace_old_ones_within_a_window() -> None:
    recent = Quantile(0.95, window=60, minimum=20).recent()
    for n in range(600):
        recent.add(5, n / 10)
    for n in range(600, 1200):
        recent.add(0.1, n / 10)
    assert 0.1 < recent.at(120) < 0.11


def test_an_endless_window_forgets_nothing() -> None:
    recent = Quantile(1, window=math.inf, minimum=1).recent()
    recent.add(5, 0)
    recent.add(1, 1e12)
    assert recent.count(1e15) == 2
    assert 5 < recent.at(1e15) < 5.5


def test_two_run_states_of_one_rule_know_nothing_of_each_other() -> None:
    rule = Quantile(minimum=1)
    first, second = rule.recent(), rule.recent()
    first.add(1, 0)
    assert (first.count(0), second.count(0)) == (1, 0)


class RecentMachine(RuleBasedStateMachine):
    """All that is younger than half a window counts, nothing that is as old as the window."""

    recent: RecentQuantile

    @initialize(window=st.sampled_from([1, 8, 60]), start=st.sampled_from([0, 3.5, 1e6]))
    def begin(self, window: float, start: float) -> None:
        self.window, self.now = window, start
        self.recent = Quantile(0.5, window=window, minimum=1).recent()
        self.added: list[tuple[float, float]] = []

    @rule(share=st.sampled_from([0, 0.125, 0.25, 0.5, 1, 2, 10]))
    def wait(self, share: float) -> None:
        self.now += share * self.window

    @rule(seconds=durations)
    def add(self, seconds: float) -> None:
        self.recent.add(seconds, self.now)
        self.added.append((self.now, seconds))

    @invariant()
    def what_counts(self) -> None:
        ages = [self.now - at for at, _ in self.added]
        young = sum(age < self.window / 2 for age in ages)
        assert young <= self.recent.count(self.now) <= sum(age < self.window for age in ages)

    @invariant()
    def the_quantile_is_that_of_the_latest(self) -> None:
        count = self.recent.count(self.now)
        if count:
            latest = [seconds for _, seconds in self.added[-count:]]
            assert is_quantile(self.recent.at(self.now), latest, 0.5)
        else:
            assert self.recent.at(self.now) == math.inf


TestRecentMachine = RecentMachine.TestCase


def test_it_is_a_value() -> None:
    assert Quantile() == Quantile(0.95, window=60, minimum=20, initial=math.inf)
    assert Quantile() != Quantile(0.9)
    assert repr(Quantile(0.9, window=5)) == "Quantile(q=0.9, window=5.0, minimum=20, initial=inf)"
    with pytest.raises(AttributeError):
        setattr(Quantile(), "q", 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"q": 0}, "q must be > 0, got 0"),
        ({"q": 1.5}, "q must be <= 1, got 1.5"),
        ({"q": math.nan}, "q must be > 0, got nan"),
        ({"window": 0}, "window must be > 0, got 0"),
        ({"window": math.nan}, "window must be > 0, got nan"),
        ({"minimum": 0}, "minimum must be >= 1, got 0"),
        ({"minimum": 1.5}, "minimum must be a whole number or math.inf, got 1.5"),
        ({"initial": -1}, "initial must be >= 0, got -1"),
    ],
)
def test_bad_numbers(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Quantile(**arguments)


@pytest.mark.parametrize("name", ["q", "window", "minimum", "initial"])
@pytest.mark.parametrize("value", [True, "1", None])
def test_what_is_no_number(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be a number, got {value!r}$"):
        Quantile(**{name: value})  # type: ignore[arg-type]
