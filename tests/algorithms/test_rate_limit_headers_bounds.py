"""The longest field that is read, and the least number of each unit."""

from __future__ import annotations

import pytest

from trio_orchestrator.algorithms.rate_limit_headers import parse_rate_limit


def test_a_field_of_4096_characters_is_read_and_a_longer_one_is_not() -> None:
    assert parse_rate_limit({"X-RateLimit-Remaining": "7".ljust(4096)}, 0.0) is not None
    assert parse_rate_limit({"X-RateLimit-Remaining": "7".ljust(4097)}, 0.0) is None


@pytest.mark.parametrize("zeros", [9, 12, 15, 18])
def test_the_first_moment_that_is_one_is_the_same_in_every_unit(zeros: int) -> None:
    state = parse_rate_limit({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1" + "0" * zeros}, 0.0)
    assert state is not None
    assert state.reset_after == 1e9
