"""`x-amz-retry-after`: milliseconds, at most 5 s more than the backoff, never less than it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulations import EXPECTED
from trio_orchestrator.algorithms.retry_after import aws_retry_after

backoffs = st.floats(0, 20)


@pytest.mark.parametrize(("text", "seconds"), EXPECTED["aws_quota"]["retry_after"].items())
def test_the_published_vectors(text: str, seconds: float) -> None:
    assert aws_retry_after(text, EXPECTED["aws_quota"]["retry_after_backoff"]) == seconds


@pytest.mark.parametrize("text", ["", "1.5", "1e3", "+7", "٣", "inf", "nan", "7 000", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_nonsense_changes_nothing(text: str) -> None:
    assert aws_retry_after(text, 0.3) == 0.3


@given(st.integers(0, 10**400), backoffs)
def test_it_stretches_a_pause_by_five_seconds_at_most(milliseconds: int, backoff: float) -> None:
    pause = aws_retry_after(f" {milliseconds} ", backoff)
    assert backoff <= pause <= backoff + 5
    if milliseconds <= 5000:
        assert pause == max(backoff, milliseconds / 1000)
