"""The defaults of the adaptive limits, the edges of their arguments, and what those become."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from trio_orchestrator.algorithms.aimd import AIMD
from trio_orchestrator.algorithms.arc import ARC
from trio_orchestrator.algorithms.envoy import EnvoyGradient
from trio_orchestrator.algorithms.gradient2 import Gradient2
from trio_orchestrator.algorithms.round_trip import between, fraction
from trio_orchestrator.algorithms.vegas import Vegas

DEFAULTS: dict[Any, dict[str, float]] = {
    AIMD: {"initial": 20, "minimum": 1, "maximum": 200, "grow": 1, "shrink": 0.9, "too_slow": 5},
    Vegas: {
        "initial": 20,
        "minimum": 1,
        "maximum": 1000,
        "alpha": 3,
        "beta": 6,
        "smoothing": 1,
        "shrink": 0.9,
    },
    Gradient2: {
        "initial": 20,
        "minimum": 20,
        "maximum": 200,
        "queue": 4,
        "tolerance": 1.5,
        "smoothing": 0.2,
        "window": 600,
        "shrink": 0.9,
    },
    EnvoyGradient: {
        "minimum": 3,
        "maximum": 1000,
        "interval": 0.1,
        "every": 60,
        "jitter": 0.15,
        "requests": 50,
        "quantile": 0.5,
        "buffer": 0.25,
        "shrink": 0.9,
    },
    ARC: {"initial": 1, "minimum": 1, "maximum": 200, "alpha": 0.4, "deviations": 2.5, "shrink": 0.9},
}
EDGES: tuple[tuple[Any, dict[str, float]], ...] = (
    (AIMD, {"grow": 0.5, "too_slow": 0.5}),
    (AIMD, {"too_slow": math.inf}),
    (Vegas, {"alpha": 0.5, "beta": 0.5}),
    (Vegas, {"smoothing": 0.5}),
    (Vegas, {"smoothing": 1}),
    (Gradient2, {"queue": 0.5, "tolerance": 1, "smoothing": 1, "window": 1}),
    (EnvoyGradient, {"interval": 0, "every": 0.5, "jitter": 0, "requests": 1, "buffer": 0}),
    (EnvoyGradient, {"every": math.inf, "quantile": 0.999}),
    (ARC, {"alpha": 1, "deviations": 0}),
    (ARC, {"alpha": 0.01}),
)
NOT_FINITE: tuple[tuple[Any, str], ...] = (
    (AIMD, "grow"),
    (Vegas, "alpha"),
    (Vegas, "beta"),
    (Gradient2, "queue"),
    (Gradient2, "tolerance"),
    (Gradient2, "window"),
    (EnvoyGradient, "interval"),
    (EnvoyGradient, "jitter"),
    (EnvoyGradient, "buffer"),
    (ARC, "deviations"),
)
every_kind = pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)


@every_kind
def test_the_defaults(kind: Any) -> None:
    assert asdict(kind()) == DEFAULTS[kind]


@every_kind
def test_the_bounds_may_meet_and_there_may_be_none_above(kind: Any) -> None:
    initial = {"initial": 30} if "initial" in DEFAULTS[kind] else {}
    assert kind(minimum=30, maximum=30, **initial).clamp(50) == 30
    assert kind(minimum=1, maximum=1, **dict.fromkeys(initial, 1)).clamp(5) == 1
    assert kind(minimum=30, maximum=math.inf, **initial).clamp(1e9) == 1e9
    assert kind(minimum=1, shrink=0.001).shrink == 0.001
    with pytest.raises(ValueError, match=r"^maximum must be >= 30, got 29$"):
        kind(minimum=30, maximum=29, **initial)


@every_kind
def test_a_limit_is_a_whole_number_and_a_share_is_a_fraction(kind: Any) -> None:
    initial = {"initial": 30} if "initial" in DEFAULTS[kind] else {}
    rule = kind(minimum=2.0, maximum=300.0, shrink=0.5, **initial)
    assert (type(rule.minimum), type(rule.maximum), type(rule.shrink)) == (int, int, float)
    for name in ("minimum", "maximum"):
        with pytest.raises(ValueError, match=f"^{name} must be a whole number or math.inf, got 30.5$"):
            kind(**{name: 30.5})


@pytest.mark.parametrize("kind", [AIMD, Vegas, Gradient2, ARC])
def test_the_initial_limit_is_within_the_bounds(kind: Any) -> None:
    assert [kind(minimum=5, maximum=50, initial=initial).initial for initial in (5, 50.0)] == [5, 50]
    assert type(kind(initial=50.0).initial) is int
    for initial, bound in ((4, ">= 5 and finite"), (51, "<= maximum=50"), (5.5, "a whole number or math.inf")):
        with pytest.raises(ValueError, match=r"^initial must be") as caught:
            kind(minimum=5, maximum=50, initial=initial)
        assert str(caught.value) == f"initial must be {bound}, got {initial!r}"


@pytest.mark.parametrize(("kind", "arguments"), EDGES, ids=lambda value: str(value))
def test_the_edges_are_legal_and_numbers_become_floats(kind: Any, arguments: dict[str, float]) -> None:
    rule = asdict(kind(**arguments))
    for name, value in arguments.items():
        assert rule[name] == value
        assert type(rule[name]) is (int if name == "requests" else float)


@pytest.mark.parametrize(("kind", "name"), NOT_FINITE, ids=lambda value: str(value))
def test_what_must_be_finite(kind: Any, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be >=? \S+ and finite, got inf$"):
        kind(**{name: math.inf})


def test_beta_is_not_below_alpha() -> None:
    with pytest.raises(ValueError, match=r"^beta must be >= 3 and finite, got 2\.9$"):
        Vegas(beta=2.9)


def test_shares() -> None:
    assert (between("share", 0.5, 0, 1), fraction("share", 1), fraction("share", 1e-9)) == (0.5, 1, 1e-9)
    assert [type(fraction("share", 1)), type(between("share", 2, 1, 3))] == [float, float]
    for bad, bound in ((1, "< 1"), (0, "> 0"), (math.nan, "> 0")):
        with pytest.raises(ValueError, match=r"^share must be") as caught:
            between("share", bad, 0, 1)
        assert str(caught.value) == f"share must be {bound}, got {bad!r}"
    for bad, bound in ((1.0001, "<= 1"), (0, "> 0"), (math.nan, "> 0")):
        with pytest.raises(ValueError, match=r"^share must be") as caught:
            fraction("share", bad)
        assert str(caught.value) == f"share must be {bound}, got {bad!r}"
