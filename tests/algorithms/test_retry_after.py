from __future__ import annotations

import math
import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.retry_after import parse_http_date, parse_retry_after

NOW = 1_445_412_480.0  # Wed, 21 Oct 2015 07:28:00 GMT


@pytest.mark.parametrize(
    ("text", "wait"), [("120", 120), ("0", 0), (" 7 ", 7), ("1.5", 1.5), ("00", 0), ("86400000", 86_400_000)]
)
def test_seconds(text: str, wait: float) -> None:
    assert parse_retry_after(text, NOW) == wait


@pytest.mark.parametrize(
    "text",
    ["Wed, 21 Oct 2015 07:29:00 GMT", "Wednesday, 21-Oct-15 07:29:00 GMT", "Wed Oct 21 07:29:00 2015"],
    ids=["IMF-fixdate", "RFC 850", "asctime"],
)
def test_the_three_forms_of_an_http_date(text: str) -> None:
    assert parse_retry_after(text, NOW) == 60
    assert parse_retry_after(text, NOW + 60) == 0
    assert parse_retry_after(text, NOW + 1e6) == 0  # has passed: at once


@pytest.fixture
def pacific_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "PST8PDT")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("pacific_time")
def test_a_date_without_a_zone_is_in_gmt() -> None:
    assert time.localtime(NOW).tm_hour == 0
    assert parse_http_date("Wed Oct 21 07:28:00 2015") == NOW
    assert parse_http_date("Wed, 21 Oct 2015 07:28:00 -0000") == NOW


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "-0", "+5", "soon", "nan", "inf", "-inf", "1e3", "1_000", "5 s", "0x10", "1.", ".5", "1,5", "٣"],
)
def test_what_is_no_number_of_seconds_is_ignored(text: str) -> None:
    assert parse_retry_after(text, NOW) is None


@pytest.mark.parametrize(
    "text",
    [
        "9" * 400,
        "Wed, 41 Oct 2015 07:28:00 GMT",
        "Wed, 21 Oct 2015 27:28:00 GMT",
        "Wed, 21 Foo 2015 07:28:00 GMT",
        "Wed, 21 Oct 99999 07:28:00 GMT",
        "Wed, 21 Oct 2015",
        "21 Oct",
    ],
)
def test_what_is_no_date_is_ignored(text: str) -> None:
    assert parse_retry_after(text, NOW) is None


@given(st.text() | st.text("0123456789 :,-+.GMTWedOct", max_size=40), st.floats(0, 1e11))
def test_whatever_a_server_sends_is_a_finite_pause_or_nothing(text: str, now: float) -> None:
    wait = parse_retry_after(text, now)
    assert wait is None or 0 <= wait < math.inf


@given(st.integers(0, 4_000_000_000), st.integers(-10_000, 10_000))
def test_a_date_is_measured_from_now(now: int, ahead: int) -> None:
    assert parse_retry_after(formatdate(max(0, now + ahead), usegmt=True), now) == max(0, max(0, now + ahead) - now)
