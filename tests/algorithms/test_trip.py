"""When a circuit opens: each rule against the list of all calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.trip import AnyOf, Consecutive, Ratio, SlowRatio, Trip

CALLS = st.lists(st.tuples(st.integers(0, 15), st.booleans(), st.booleans()), max_size=50)
Calls = list[tuple[int, bool, bool]]
RATIOS = st.sampled_from([0.01, 0.07, 0.1, 0.29, 1 / 3, 0.5, 0.57, 2 / 3, 0.9, 1.0])


def answers(rule: Trip, calls: Calls) -> list[bool]:
    tally, now, found = rule.tally(), 0, list[bool]()
    for dt, failed, slow in calls:
        now += dt
        found.append(tally.record(float(now), failed, slow))
    return found


def letters(rule: Trip, calls: str) -> str:
    """Play `F` for a failure, `S` for a slow success, `B` for both, `.` for neither; "!" where it opens."""
    tally = rule.tally()
    return "".join("!" if tally.record(0.0, one in "FB", one in "SB") else "." for one in calls)


@given(failures=st.integers(1, 5), calls=CALLS)
def test_consecutive_opens_on_so_many_in_a_row(failures: int, calls: Calls) -> None:
    failed = [one for _, one, _ in calls]
    row = [failed[:n][-failures:] == [True] * failures for n in range(1, len(calls) + 1)]
    assert answers(Consecutive(failures), calls) == row


@given(ratio=RATIOS, size=st.integers(1, 12), minimum=st.integers(1, 12), calls=CALLS)
def test_a_ratio_of_the_last_calls(ratio: float, size: int, minimum: int, calls: Calls) -> None:
    minimum = min(size, minimum)
    expected = list[bool]()
    for n in range(1, len(calls) + 1):
        latest = [failed for _, failed, _ in calls[:n]][-size:]
        expected.append(len(latest) >= minimum and sum(latest) / len(latest) >= ratio)
    assert answers(Ratio(ratio, calls=size, minimum=minimum), calls) == expected


@pytest.mark.parametrize("kind", [Ratio, SlowRatio])
@given(ratio=RATIOS, width=st.integers(1, 4), minimum=st.integers(1, 8), calls=CALLS)
def test_a_ratio_of_the_last_seconds(
    kind: type[Ratio | SlowRatio], ratio: float, width: int, minimum: int, calls: Calls
) -> None:
    now, seen, expected = 0, list[tuple[int, bool]](), list[bool]()
    for dt, failed, slow in calls:
        now += dt
        seen.append((now // width, failed if kind is Ratio else slow))
        latest = [bad for slot, bad in seen if slot > now // width - 10]
        expected.append(len(latest) >= minimum and sum(latest) / len(latest) >= ratio)
    assert answers(kind(ratio, seconds=10 * width, minimum=minimum), calls) == expected


@given(calls=CALLS)
def test_any_of_opens_when_one_of_them_would_and_each_sees_every_call(calls: Calls) -> None:
    parts = [Consecutive(3), Ratio(0.6, calls=5), SlowRatio(0.5, seconds=20, minimum=4)]
    each = [answers(part, calls) for part in parts]
    together = [any(opens) for opens in zip(*each, strict=True)]
    assert answers(AnyOf(*parts), calls) == together
    assert answers(parts[0] | parts[1] | parts[2], calls) == together


def test_polly_131_a_success_starts_the_row_anew() -> None:
    assert letters(Consecutive(3), "FF.FF.FFFF") == "........!!"


def test_a_share_that_is_just_reached_opens_whatever_floats_say() -> None:
    assert letters(Ratio(0.07, calls=100, minimum=100), "F" * 7 + "." * 93)[-1] == "!"
    assert letters(Ratio(0.07, calls=100, minimum=100), "F" * 6 + "." * 94)[-1] == "."
    for failures in range(1, 101):
        assert (
            letters(Ratio(failures / 100, calls=100, minimum=100), "F" * failures + "." * (100 - failures))[-1] == "!"
        )


def test_a_success_may_complete_the_minimum() -> None:
    assert letters(Ratio(0.5, calls=10, minimum=4), "FF..") == "...!"


def test_slow_ratio_looks_at_slow_calls_only() -> None:
    assert letters(SlowRatio(0.5, calls=4, minimum=4), "FFFFSSS") == ".....!!"
    assert letters(Ratio(0.5, calls=4, minimum=4), "SSSSFFF") == ".....!!"
    assert letters(SlowRatio(1.0, calls=2) | Ratio(1.0, calls=2), "SFSFSF") == "......"


def test_only_rules_that_look_at_slow_calls_say_so() -> None:
    assert not Consecutive(1).sees_slow
    assert not (Consecutive(1) | Ratio(0.5)).sees_slow
    assert SlowRatio(0.5).sees_slow
    assert (Consecutive(1) | SlowRatio(0.5)).sees_slow


def test_the_minimum_is_ten_or_the_whole_window_if_that_is_less() -> None:
    assert repr(Ratio(0.5)) == "Ratio(0.5, seconds=10, minimum=10)"
    assert repr(Ratio(0.5, calls=100)) == "Ratio(0.5, calls=100, minimum=10)"
    assert repr(Ratio(0.25, calls=4)) == "Ratio(0.25, calls=4, minimum=4)"
    assert repr(SlowRatio(1, seconds=2.5, minimum=1)) == "SlowRatio(1, seconds=2.5, minimum=1)"
    assert repr(Consecutive(5) | Ratio(0.5, calls=4)) == "Consecutive(5) | Ratio(0.5, calls=4, minimum=4)"


@pytest.mark.parametrize("rule", [Ratio(0.9), SlowRatio(0.9, seconds=10), Ratio(0.5) | SlowRatio(0.5)], ids=repr)
def test_an_idle_hour_leaves_nothing(rule: Trip) -> None:
    tally = rule.tally()
    assert tally.is_empty(0.0)
    tally.record(0.5, True, True)
    assert not tally.is_empty(9.9)
    assert tally.is_empty(3600.0)


def test_what_counts_calls_and_not_time_remembers() -> None:
    row, share = Consecutive(3).tally(), Ratio(0.5, calls=5).tally()
    for tally in (row, share):
        tally.record(0.0, True, False)
        assert not tally.is_empty(1e9)
    row.record(1e9, False, False)
    assert row.is_empty(1e9)


def test_a_rule_is_shared_and_each_tally_is_its_own() -> None:
    rule = Consecutive(2)
    one, other = rule.tally(), rule.tally()
    assert not one.record(0.0, True, False)
    assert not other.record(0.0, True, False)
    assert one.record(0.0, True, False)
