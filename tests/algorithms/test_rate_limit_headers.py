from __future__ import annotations

import math
from email.utils import formatdate

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.rate_limit_headers import RateLimitState, parse_rate_limit

INF = math.inf
NOW = 1_700_000_000.0


def parse(**headers: str) -> RateLimitState | None:
    return parse_rate_limit({name.replace("_", "-"): value for name, value in headers.items()}, NOW)


def classic(prefix: str, limit: str, remaining: str, reset: str) -> dict[str, str]:
    return {f"{prefix}-Limit": limit, f"{prefix}-Remaining": remaining, f"{prefix}-Reset": reset}


# ---------------------------------------------------------------------------------------------------- structured


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('"default";r=50;t=30', (INF, 50, 30)),
        ('"default"; r=50; t=30', (INF, 50, 30)),
        ("default;r=50;t=30", (INF, 50, 30)),
        ('"default";r=0;t=0', (INF, 0, 0)),
        ('"default";t=30;r=50;pk=:cHNsODA=:', (INF, 50, 30)),
        ('"default";r=50', (INF, 50, INF)),
        ('"a;b,c";r=5;t=1', (INF, 5, 1)),
        (r'"a\"b";r=5;t=1', (INF, 5, 1)),
        ('"burst";r=5;t=1, "daily";r=3;t=9000', (INF, 3, 9000)),
        ('"burst";r=3;t=1, "daily";r=3;t=9000', (INF, 3, 9000)),
        ('"burst";r=-1;t=1, "daily";r=3;t=9000', (INF, 3, 9000)),
        ('"burst";r=x;t=1,, "daily";r=3;t=soon', (INF, 3, INF)),
        ("limit=100, remaining=50, reset=30", (100, 50, 30)),
        ("remaining=50", (INF, 50, INF)),
        ("remaining=50,limit=100", (100, 50, INF)),
    ],
)
def test_the_field_of_the_newer_drafts(text: str, state: tuple[float, float, float]) -> None:
    assert parse(RateLimit=text) == state


def test_the_policy_tells_the_limit_and_the_window() -> None:
    policy = '"burst";q=10;w=1, "daily";q=1000;w=86400;qu="requests"'
    assert parse(RateLimit='"daily";r=9;t=60', RateLimit_Policy=policy) == (1000, 9, 60)
    assert parse(RateLimit='"daily";r=9', RateLimit_Policy=policy) == (1000, 9, 86400)
    assert parse(RateLimit='"hourly";r=9', RateLimit_Policy=policy) == (INF, 9, INF)
    assert parse(RateLimit='"burst";r=9;t=1', RateLimit_Policy="nonsense,;=") == (INF, 9, 1)
    assert parse(RateLimit_Policy=policy) is None  # what is allowed, but not what is left


# ------------------------------------------------------------------------------------------------------- classic


@pytest.mark.parametrize("prefix", ["RateLimit", "X-RateLimit", "X-Rate-Limit"])
def test_the_three_fields_of_the_older_drafts_and_of_the_wild(prefix: str) -> None:
    assert parse_rate_limit(classic(prefix, "100", "50", "30"), NOW) == (100, 50, 30)
    assert parse_rate_limit(classic(prefix, "100, 100;w=60", "0", "0"), NOW) == (100, 0, 0)
    assert parse_rate_limit({f"{prefix}-Remaining": "7"}, NOW) == (INF, 7, INF)
    assert parse_rate_limit({f"{prefix}-Limit": "7", f"{prefix}-Reset": "1"}, NOW) is None


@pytest.mark.parametrize(
    ("reset", "wait"),
    [
        ("60", 60),
        ("0.25", 0.25),
        ("999999999", 999_999_999),
        ("1700000060", 60),
        ("1600000000", 0),
        ("1700000060000", 60),
        ("1700000060000000", 60),
        ("1700000060000000000", 60),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60),
        ("", INF),
        ("-5", INF),
        ("soon", INF),
        ("6m0s", INF),
    ],
)
def test_a_reset_is_a_duration_or_a_moment(reset: str, wait: float) -> None:
    assert parse_rate_limit(classic("X-RateLimit", "60", "0", reset), NOW) == (60, 0, wait)


def test_restful_api_guidelines_379_a_small_reset_is_a_duration_and_a_large_one_a_moment() -> None:
    """GitHub sends a moment, Zalando a duration, under one name."""
    github = classic("X-RateLimit", "60", "56", "1372700873")
    zalando = classic("X-RateLimit", "60", "56", "2513")
    moment = 1372700873.0
    assert parse_rate_limit(github, moment - 2513) == parse_rate_limit(zalando, moment - 2513) == (60, 56, 2513)


def test_express_rate_limit_232_a_moment_is_in_seconds_and_not_in_milliseconds() -> None:
    """Read as milliseconds, 1620105727 is a day in January 1970."""
    state = parse_rate_limit(classic("X-RateLimit", "5", "4", "1620105727"), 1620105667)
    assert state == (5, 4, 60)


def test_smaug_41_what_is_only_a_few_days_is_no_moment() -> None:
    """`The timestamp when the quota will reset` was 150933900: no year of the present."""
    assert parse_rate_limit(classic("X-Rate-Limit", "9", "1", "150933900"), NOW) == (9, 1, 150_933_900)


def test_hermes_agent_96005_a_relative_reset_is_not_a_moment_long_past() -> None:
    """42, taken for a second of 1970, freed a credential at once; another provider sends milliseconds."""
    assert parse(X_RateLimit_Remaining="0", X_RateLimit_Reset="42") == (INF, 0, 42)
    assert parse(X_RateLimit_Remaining="0", X_RateLimit_Reset="1700000042000") == (INF, 0, 42)


# ------------------------------------------------------------------------------------------------------- in all


def test_the_newest_dialect_that_makes_sense_counts() -> None:
    both = classic("RateLimit", "1", "1", "1") | classic("X-RateLimit", "2", "2", "2")
    assert parse_rate_limit(both | {"RateLimit": '"a";r=3;t=3'}, NOW) == (INF, 3, 3)
    assert parse_rate_limit(both | {"RateLimit": "nonsense"}, NOW) == (1, 1, 1)
    assert parse_rate_limit(both | {"RateLimit-Remaining": "nonsense"}, NOW) == (2, 2, 2)


def test_names_are_found_in_httpx_headers_and_in_lower_case() -> None:
    fields = classic("X-RateLimit", "60", "56", "9")
    assert parse_rate_limit(httpx.Headers(fields), NOW) == (60, 56, 9)
    assert parse_rate_limit({name.lower(): value for name, value in fields.items()}, NOW) == (60, 56, 9)


@pytest.mark.parametrize(
    "text", ["", " ", ",", ";", '"', '";r=1', "r=1", "=;=", "a;r", "a;r=", "a;r=1e3", "a;r=٣", "a;r=inf", "a;r=nan"]
)
def test_nonsense_is_none(text: str) -> None:
    assert parse(RateLimit=text) is None
    assert parse(X_RateLimit_Remaining=text) is None


def test_an_endless_field_is_not_read() -> None:
    for text in ('"' + '\\"' * 100_000, '"a' * 100_000, "a;r=1;t=1" + " " * 5000, ";" * 100_000):
        assert parse(RateLimit=text) is None
    assert parse(RateLimit='"' + '\\"' * 2000) is None


headers = st.dictionaries(
    st.sampled_from(
        [
            "RateLimit",
            "RateLimit-Policy",
            *classic("RateLimit", "", "", ""),
            *classic("X-RateLimit", "", "", ""),
            *classic("x-rate-limit", "", "", ""),
        ]
    ),
    st.text() | st.text('0123456789 ;,="rtqw.-\\', max_size=40) | st.integers(-2, 10**20).map(str),
)


@given(headers, st.floats(0, 1e11))
def test_whatever_a_server_sends_is_a_sane_state_or_nothing(fields: dict[str, str], now: float) -> None:
    state = parse_rate_limit(fields, now)
    assert state is None or (state.limit >= 0 and 0 <= state.remaining < INF and state.reset_after >= 0)


amounts = st.integers(0, 10**9 - 1)


@given(amounts, amounts, amounts, st.floats(0, 4e9))
def test_every_dialect_says_the_same(limit: int, remaining: int, reset: int, now: float) -> None:
    said = RateLimitState(limit, remaining, reset)
    item, policy = f'"p";r={remaining};t={reset}', f'"p";q={limit};w=1'
    assert parse_rate_limit({"RateLimit": item, "RateLimit-Policy": policy}, now) == said
    assert parse_rate_limit({"RateLimit": f"limit={limit},remaining={remaining},reset={reset}"}, now) == said
    for prefix in ("RateLimit", "X-RateLimit", "X-Rate-Limit"):
        assert parse_rate_limit(classic(prefix, str(limit), str(remaining), str(reset)), now) == said


@given(st.integers(1_000_000_000, 4_000_000_000), st.integers(-10_000, 10_000))
def test_a_moment_is_measured_from_now(now: int, ahead: int) -> None:
    moment = max(1_000_000_000, now + ahead)
    for text in (str(moment), str(moment * 1000), formatdate(moment, usegmt=True)):
        state = parse_rate_limit(classic("X-RateLimit", "1", "1", text), now)
        assert state is not None
        assert state.reset_after == max(0, moment - now)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), min_size=1, max_size=6))
def test_of_several_limits_the_tightest_counts(limits: list[tuple[int, int]]) -> None:
    text = ", ".join(f'"{index}";r={left};t={reset}' for index, (left, reset) in enumerate(limits))
    least = min(left for left, _ in limits)
    assert parse(RateLimit=text) == (INF, least, max(reset for left, reset in limits if left == least))
