from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulations import EXPECTED
from trio_orchestrator.algorithms.share import refused_share

POINTS = EXPECTED["sre"]["points_requests_accepts_k_share"]


@pytest.mark.parametrize(("requests", "accepts", "k", "share"), POINTS)
def test_the_published_points(requests: int, accepts: int, k: float, share: float) -> None:
    assert refused_share(requests, accepts, k) == pytest.approx(share, abs=5e-6)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(1, 10), st.floats(0.01, 1))
def test_bounds(requests: int, accepts: int, k: float, most: float) -> None:
    accepts = min(accepts, requests)
    share = refused_share(requests, accepts, k)
    assert 0 <= share < 1
    assert refused_share(requests, accepts, k, most) == min(share, most)
    assert refused_share(requests + 1, accepts, k) >= share
    if accepts:
        assert refused_share(requests, accepts - 1, k) >= share
    assert share > 0 or requests <= k * accepts
