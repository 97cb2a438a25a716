"""The edges of the backoffs: what a pause of zero means, what is drawn when there is nothing to draw, the defaults."""

from __future__ import annotations

from random import Random

import pytest

from trio_orchestrator.abc import Backoff
from trio_orchestrator.algorithms.backoff import (
    AdditiveJitter,
    Custom,
    DecorrelatedJitter,
    EqualJitter,
    FullJitter,
    Linear,
)


def test_the_defaults_of_linear_count_the_seconds() -> None:
    assert Linear().preview(4) == (1, 2, 3, 4)
    assert Linear(step=0).preview(3) == (1, 1, 1)


@pytest.mark.parametrize("delay", [0, 0.0, 1e-300, 0.5, 1e300])
def test_a_custom_delay_may_be_zero_or_any_finite_number(delay: float) -> None:
    assert Custom(lambda retry, rng: delay)(1, Random(1)) == delay


@pytest.mark.parametrize(
    "backoff",
    [
        FullJitter(base=2, cap=2, floor=2),
        EqualJitter(base=2, cap=2, floor=2),
        AdditiveJitter(base=1, cap=2, floor=2),
        DecorrelatedJitter(base=2, cap=2),
    ],
    ids=repr,
)
def test_where_there_is_one_pause_only_nothing_is_drawn(backoff: Backoff) -> None:
    rng = Random(1)
    before = rng.getstate()
    assert [backoff(retry, rng) for retry in (1, 2, 9)] == [2, 2, 2]
    assert rng.getstate() == before
