"""The first and the last of everything that a date is made of."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from trio_orchestrator.algorithms.retry_after import aws_retry_after, parse_http_date, parse_retry_after


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("Thu, 01 Jan 2015 00:00:00 GMT", (2015, 1, 1, 0, 0, 0)),
        ("Thu, 31 Dec 2015 23:59:59 GMT", (2015, 12, 31, 23, 59, 59)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", (9999, 12, 31, 23, 59, 59)),
    ],
)
def test_the_edges_of_a_date(text: str, moment: tuple[int, int, int, int, int, int]) -> None:
    assert parse_http_date(text) == datetime(*moment, tzinfo=UTC).timestamp()


def test_a_leap_second_is_a_second() -> None:
    assert parse_http_date("Wed, 31 Dec 2008 23:59:60 GMT") == datetime(2009, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "Wed, 00 Oct 2015 07:28:00 GMT",
        "Wed, 32 Oct 2015 07:28:00 GMT",
        "Wed, 21 Oct 10000 07:28:00 GMT",
        "Wed, 21 Oct 2015 24:00:00 GMT",
        "Wed, 21 Oct 2015 07:60:00 GMT",
        "Wed, 21 Oct 2015 07:28:61 GMT",
    ],
)
def test_one_more_is_no_date(text: str) -> None:
    assert parse_http_date(text) is None
    assert parse_retry_after(text, 0.0) is None


def test_seconds_beyond_all_numbers_are_nonsense() -> None:
    assert parse_retry_after("9" * 308, 0.0) == float("9" * 308) < math.inf
    assert parse_retry_after("9" * 309, 0.0) is None
    assert aws_retry_after(" 1500 ", 0.5) == 1.5
