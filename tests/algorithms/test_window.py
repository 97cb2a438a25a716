"""Windows over the latest calls, against lists of all calls."""

from __future__ import annotations

import sys

from hypothesis import example, given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.window import CountWindow, TimeWindow

CALLS = st.lists(st.booleans(), max_size=60)
STEPS = st.lists(
    st.tuples(st.one_of(st.sampled_from([0.0, 0.1, 1.0, 8.9, 9.0, 9.1, 10.0, 3600.0]), st.floats(0, 30)), st.booleans())
)
TICKS = st.lists(st.tuples(st.integers(0, 25), st.sampled_from(["good", "bad", "read"])), max_size=60)


@given(size=st.integers(1, 12), calls=CALLS)
def test_a_count_window_holds_the_last_so_many(size: int, calls: list[bool]) -> None:
    window = CountWindow(size)
    for n, bad in enumerate(calls, 1):
        window.add(0.0, bad)
        latest = calls[max(0, n - size) : n]
        assert (window.calls, window.bad) == (len(latest), sum(latest))
        window.expire(1e9)  # time is nothing to it
        assert (window.calls, window.bad) == (len(latest), sum(latest))


@given(steps=STEPS, start=st.sampled_from([0.0, 0.05, 17.3, 1e6]))
def test_each_call_is_forgotten_when_it_is_nine_to_ten_tenths_of_the_window_old(
    steps: list[tuple[float, bool]], start: float
) -> None:
    window, now, calls = TimeWindow(10.0), start, list[tuple[float, bool]]()
    for dt, bad in steps:
        now += dt
        window.expire(now)
        young = [bad for at, bad in calls if now - at < 9 - 1e-6]
        remembered = [bad for at, bad in calls if now - at < 10 + 1e-6]
        assert len(young) <= window.calls <= len(remembered)
        assert sum(young) <= window.bad <= sum(remembered)
        window.add(now, bad)
        calls.append((now, bad))


@given(width=st.integers(1, 7), start=st.integers(0, 1000), ticks=TICKS)
@example(width=1, start=0, ticks=[(0, "bad"), (9, "read"), (1, "read")])
@example(width=1, start=0, ticks=[(0, "bad"), (5, "good"), (5, "bad"), (4, "read"), (1, "read"), (25, "good")])
def test_a_time_window_holds_the_present_bucket_and_nine_before_it(
    width: int, start: int, ticks: list[tuple[int, str]]
) -> None:
    window, now, calls = TimeWindow(10.0 * width), start, list[tuple[int, bool]]()
    for dt, what in ticks:
        now += dt
        if what == "read":
            window.expire(float(now))
        else:
            window.add(float(now), what == "bad")
            calls.append((now // width, what == "bad"))
        held = [bad for slot, bad in calls if slot > now // width - 10]
        assert (window.calls, window.bad) == (len(held), sum(held))


@given(seconds=st.floats(0.01, 1e6), ages=st.lists(st.floats(0, 2), min_size=1, max_size=20))
def test_an_idle_window_is_empty_when_it_is_read(seconds: float, ages: list[float]) -> None:
    window, now = TimeWindow(seconds), 12_345.6
    for age in ages:
        now += age * seconds
        window.add(now, bad=True)
    window.expire(now + 1.001 * seconds)
    assert (window.calls, window.bad) == (0, 0)
    window.add(now + 2 * seconds, bad=False)
    assert (window.calls, window.bad) == (1, 0)


def test_memory_does_not_grow_with_the_calls() -> None:
    window = TimeWindow(10.0)
    for n in range(20_000):
        window.add(n / 100, bad=n % 3 == 0)
    assert len(window._ring) <= 9
    assert window.calls == 1000  # the buckets from 190 s to 200 s
    assert sys.getsizeof(window._ring) < 2000


@given(calls=st.lists(st.booleans(), min_size=1, max_size=20), back=st.floats(1.001, 5000), bad=st.booleans())
def test_the_clock_of_another_run_finds_it_empty(calls: list[bool], back: float, bad: bool) -> None:
    """Otherwise what failed in an earlier run would stay in it until its clock was reached again."""
    window, now = TimeWindow(10.0), 6000.0
    for call in calls:
        now += 0.9
        window.add(now, call)
    window.expire(now - back)
    assert (window.calls, window.bad) == (0, 0)
    window.add(now - back, bad)
    assert (window.calls, window.bad) == (1, bad)
    window.expire(now - back + 10)
    assert (window.calls, window.bad) == (0, 0)
    window.add(now + 100, bad=True)  # past all that was forgotten: nothing of it may expire a second time
    assert (window.calls, window.bad) == (1, 1)
