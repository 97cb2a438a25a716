"""The slow average: right from its first value on, and it forgets at the pace that was asked for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.usual import Usual

values = st.floats(0, 1e6)
spans = st.floats(1e-3, 1e5)


@given(value=values, held=st.lists(spans, min_size=1, max_size=30), over=spans)
def test_a_constant_is_its_own_mean_from_the_first_value_on(value: float, held: list[float], over: float) -> None:
    usual = Usual(over)
    for span in held:
        usual.learn(value, span)
        assert usual.value == pytest.approx(value)
    assert usual.learned == pytest.approx(sum(held))


@given(steps=st.lists(st.tuples(values, spans), min_size=1, max_size=30), over=spans)
def test_it_is_the_weighted_mean_of_what_was_learned(steps: list[tuple[float, float]], over: float) -> None:
    usual = Usual(over)
    for value, held in steps:
        usual.learn(value, held)
    end, weighted, weights = sum(held for _, held in steps), 0.0, 0.0
    start = 0.0
    for value, held in steps:
        weight = math.exp((start - end) / over) * math.expm1(held / over) if held / over < 700 else 1.0
        weighted, weights, start = weighted + value * weight, weights + weight, start + held
    if all(held / over < 700 for _, held in steps):
        assert usual.value == pytest.approx(weighted / weights, rel=1e-6, abs=1e-6)
    assert min(value for value, _ in steps) - 1e-6 <= usual.value <= max(value for value, _ in steps) + 1e-6


@given(value=values, parts=st.lists(spans, min_size=1, max_size=10), over=spans, before=values)
def test_it_does_not_matter_in_how_many_pieces_a_value_is_learned(
    value: float, parts: list[float], over: float, before: float
) -> None:
    pieces, whole = Usual(over), Usual(over)
    for usual in (pieces, whole):
        usual.learn(before, 10.0)
    for part in parts:
        pieces.learn(value, part)
    whole.learn(value, sum(parts))
    assert pieces.value == pytest.approx(whole.value, rel=1e-6, abs=1e-6)


def test_after_its_time_constant_a_value_weighs_one_third() -> None:
    usual = Usual(3600)
    usual.learn(10, 1e6)
    usual.learn(0, 3600)
    assert usual.value == pytest.approx(10 / math.e)


def test_it_goes_on_from_what_it_knew() -> None:
    usual = Usual(7)
    for cost in (3.0, 4.0, 5.0):
        usual.learn(cost, 1)
    again = Usual(7, usual.value, usual.learned)
    for each in (usual, again):
        each.learn(100, 2)
    assert (again.value, again.learned) == pytest.approx((usual.value, usual.learned))


def test_it_knows_nothing_at_first() -> None:
    usual = Usual(7)
    assert (usual.value, usual.learned) == (0.0, 0.0)
