"""What holds for every adaptive limit."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulations.runaway import feed
from trio_orchestrator.abc import Control, Limit, Sample
from trio_orchestrator.algorithms.aimd import AIMD
from trio_orchestrator.algorithms.arc import ARC
from trio_orchestrator.algorithms.envoy import EnvoyGradient
from trio_orchestrator.algorithms.gradient2 import Gradient2
from trio_orchestrator.algorithms.vegas import Vegas

RULES: tuple[Limit, ...] = (
    AIMD(initial=40),
    Vegas(initial=40),
    Gradient2(initial=40, minimum=5),
    EnvoyGradient(requests=5, interval=0),
    ARC(initial=40),
)
KINDS: tuple[Any, ...] = (AIMD, Vegas, Gradient2, EnvoyGradient, ARC)
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)

samples = st.lists(
    st.builds(
        lambda start, rtt, in_flight, dropped: Sample(start, rtt, in_flight, dropped),
        st.floats(0, 60),
        st.one_of(st.just(0.1), st.floats(0, 2)),
        st.integers(1, 300),
        st.booleans(),
    ),
    max_size=150,
).map(lambda drawn: sorted(drawn, key=lambda sample: sample.start + sample.rtt))


def control_of(rule: Limit) -> Control:
    return rule.control(Random(1))


def settled(rule: Limit, updates: int = 60) -> tuple[Control, float]:
    """Return a control that has seen so many calls of 100 ms, one after the other, of a full house; and the time."""
    control, now = control_of(rule), 0.0
    for _ in range(updates):
        control.update(Sample(now, 0.1, int(control.limit), False))
        now += 0.1
    return control, now


@every_rule
@given(samples=samples)
def test_the_limit_stays_within_its_bounds_and_a_drop_never_raises_it(rule: Any, samples: list[Sample]) -> None:
    control = control_of(rule)
    for sample in samples:
        before = control.limit
        limit, reason = control.update(sample)
        assert limit == control.limit
        assert rule.minimum <= limit <= rule.maximum
        assert reason
        assert not (sample.dropped and limit > before)


@every_rule
@given(samples=samples)
def test_equal_samples_give_equal_limits(rule: Any, samples: list[Sample]) -> None:
    one, other = control_of(rule), control_of(rule)
    assert [one.update(sample) for sample in samples] == [other.update(sample) for sample in samples]


@every_rule
def test_netflix_137_if_all_calls_time_out_the_limit_falls_to_its_minimum(rule: Any) -> None:
    control, now = settled(rule)
    for _ in range(100):
        control.update(Sample(now, 1, int(control.limit), True))
        now += 1
    assert control.limit == rule.minimum


@every_rule
def test_vector_3493_errors_of_1_ms_do_not_lower_the_baseline(rule: Any) -> None:
    control, now = settled(rule)
    for _ in range(30):
        control.update(Sample(now, 0.001, int(control.limit), True))
        now += 0.001
    low = control.limit
    for _ in range(40):
        control.update(Sample(now, 0.1, int(control.limit), False))
        now += 0.1
    assert control.limit > low + 5  # with a baseline of 1 ms, 100 ms would be an endless queue


def test_vector_3493_not_even_one_error_of_1_ms_is_learned() -> None:
    control, now = settled(Gradient2(initial=100, window=1))  # whose average is the last latency that it has learned
    assert control.update(Sample(now, 0.001, int(control.limit), True))[1] == "dropped"
    assert control.update(Sample(now + 0.001, 0.1, int(control.limit), False))[1] == "growing"


@every_rule
def test_a_hundred_that_fail_together_are_one_reason_to_slow_down(rule: Any) -> None:
    control, now = settled(rule)
    before = control.limit
    limits = {control.update(Sample(now, 1, int(before), True))[0] for _ in range(100)}
    assert len(limits) == 1
    assert math.floor(before * 0.9) <= limits.pop() <= before * 0.9


@every_rule
def test_envoy_11579_what_started_before_the_last_step_moves_nothing(rule: Any) -> None:
    control, now = settled(rule)
    limit, _ = control.update(Sample(now, 0.1, int(control.limit), True))
    now += 0.1
    old = [Sample(now - 0.09 + step / 1000, 0.09 + step / 1000, 300, step % 2 == 1) for step in range(30)]
    assert {control.update(sample)[0] for sample in old} == {limit}


@every_rule
def test_slow_attempts_tell_in_time_if_others_were_answered_meanwhile(rule: Any) -> None:
    """Time-outs of 1 s among answers of 100 ms: each of them started ten round trips ago."""
    control, now = settled(rule)
    limits = [control.limit]
    for _ in range(5):
        limits.append(control.update(Sample(now - 1, 1.0, int(control.limit), True))[0])
        control.update(Sample(now, 0.05, 1, False))
        now += 0.05
    assert limits == sorted(limits, reverse=True)
    assert len(set(limits)) >= 3


@every_rule
def test_the_limit_does_not_grow_while_fewer_than_half_of_it_are_in_flight(rule: Any) -> None:
    control, now = settled(rule)
    before = control.limit
    for _ in range(200):
        control.update(Sample(now, 0.1, max(1, math.ceil(before / 2) - 1), False))
        assert control.limit <= before
        now += 0.1


@every_rule
def test_the_rule_is_a_value(rule: Any) -> None:
    assert rule == eval(repr(rule), {kind.__name__: kind for kind in KINDS})
    assert hash(rule) == hash(eval(repr(rule), {kind.__name__: kind for kind in KINDS}))
    with pytest.raises(AttributeError):
        rule.minimum = 7
    one, other = control_of(rule), control_of(rule)
    one.update(Sample(0, 0.1, 40, True))
    assert other.limit == control_of(rule).limit


BAD: tuple[tuple[str, object, type[Exception]], ...] = (
    ("minimum", 0, ValueError),
    ("minimum", math.inf, ValueError),
    ("minimum", 1.5, ValueError),
    ("minimum", True, TypeError),
    ("maximum", 0, ValueError),
    ("maximum", math.nan, ValueError),
    ("maximum", "many", TypeError),
    ("shrink", 0, ValueError),
    ("shrink", 1, ValueError),
    ("shrink", math.nan, ValueError),
)
BAD_OF: dict[str, tuple[tuple[Any, str, object], ...]] = {
    "initial": tuple((kind, "initial", bad) for kind in (AIMD, Vegas, Gradient2, ARC) for bad in (0, math.inf, 1001)),
    "aimd": ((AIMD, "grow", 0), (AIMD, "too_slow", 0), (AIMD, "grow", math.inf)),
    "vegas": ((Vegas, "alpha", 0), (Vegas, "beta", 2), (Vegas, "smoothing", 1.1), (Vegas, "smoothing", 0)),
    "gradient2": (
        (Gradient2, "queue", 0),
        (Gradient2, "tolerance", 0.9),
        (Gradient2, "smoothing", 0),
        (Gradient2, "window", 0),
    ),
    "envoy": (
        (EnvoyGradient, "interval", -1),
        (EnvoyGradient, "every", 0),
        (EnvoyGradient, "jitter", -0.1),
        (EnvoyGradient, "requests", 0),
        (EnvoyGradient, "quantile", 1),
        (EnvoyGradient, "buffer", -0.1),
    ),
    "arc": ((ARC, "alpha", 0), (ARC, "alpha", 1.1), (ARC, "deviations", -1)),
}


@every_kind
@pytest.mark.parametrize(("name", "value", "error"), BAD, ids=lambda value: str(value))
def test_what_all_refuse(kind: Any, name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{name} must be"):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value"), [bad for group in BAD_OF.values() for bad in group], ids=lambda value: str(value)
)
def test_what_each_refuses(kind: Any, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        kind(**{name: value})


def test_no_maximum_is_infinity() -> None:
    assert feed(Vegas(maximum=math.inf), lambda limit, update: 0.1, 500)[-1] > 1000
