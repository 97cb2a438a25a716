from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulations.runaway import feed, of_capacity
from trio_orchestrator.abc import Sample
from trio_orchestrator.algorithms.envoy import EnvoyGradient

AT_ONCE = EnvoyGradient(interval=0)


def measured_in(tenths: Callable[[int], float]) -> list[float]:
    """Return the limits behind the first measurement, of 50 calls of 100 ms."""
    return feed(AT_ONCE, lambda limit, update: 0.1 if update < 50 else tenths(update - 50), 63)[50:]


def test_the_trace_of_envoy() -> None:
    limits = measured_in(lambda update: 0.1 if update < 6 else 0.2 if update < 10 else 0.4)
    assert limits == [3, 5, 8, 13, 20, 30, 43, 32, 24, 18, 14, 9, 6, 4]


def test_on_a_capacity_of_50_it_settles_at_70() -> None:
    limits = feed(AT_ONCE, of_capacity, 90)
    assert set(limits[:51]) == {3}
    assert limits[50:59] == [3, 5, 8, 13, 20, 30, 43, 61, 70]
    assert set(limits[58:]) == {70}


def test_it_measures_again_every_minute_and_goes_on_where_it_was() -> None:
    limits = feed(AT_ONCE, of_capacity, 400)
    assert limits[58] == 70
    again = limits.index(3, 58)
    assert 60 <= sum(of_capacity(limit, 0) for limit in limits[50:again]) <= 60 * 1.15 + 1.4
    assert set(limits[again : again + 50]) == {3}
    assert limits[again + 50] == 70


def test_five_windows_at_the_minimum_are_a_reason_to_measure_again() -> None:
    limits = feed(AT_ONCE, lambda limit, update: 0.1 if update < 50 else 1.0, 200)
    assert set(limits[50:106]) == {3}  # one update, to the minimum, five there, and 50 to measure
    assert limits[106:109] == [5, 8, 13]


def test_a_window_is_as_long_as_its_interval_from_the_first_attempt_that_counts() -> None:
    control = EnvoyGradient(requests=1, interval=0.1).control(Random(1))
    control.update(Sample(0, 0.1, 3, False))
    limits = [control.update(Sample(0.1 + n * 0.02, 0.1, 3, False))[0] for n in range(7)]
    assert limits == [3, 3, 3, 3, 3, 5, 5]


def test_envoy_11579_what_started_before_a_measurement_is_not_measured() -> None:
    control = EnvoyGradient(requests=2, interval=0, every=1, jitter=0, minimum=3).control(Random(1))
    for start in (0, 0.1):
        control.update(Sample(start, 0.1, 3, False))
    now = 0.2
    while control.limit != 3 or now < 0.5:
        control.update(Sample(now, 0.1, int(control.limit), False))
        now += 0.1
    before = [control.update(Sample(now - 5, 5.0, 100, False)) for _ in range(10)]  # queued for long, before the pin
    assert {limit for limit, _ in before} == {3}
    after = [control.update(Sample(now + n, 0.1, 3, False))[0] for n in range(2)]
    assert after[0] == 3 < after[1]
    grown = control.limit
    assert control.update(Sample(now + 3, 0.2, int(grown), False))[0] < grown  # 100 ms were measured, not 5 s


def test_a_drop_while_it_measures_lowers_what_it_will_come_back_to() -> None:
    limits = feed(AT_ONCE, of_capacity, 400)
    again = limits.index(3, 58)
    dropped = feed(AT_ONCE, of_capacity, again + 51, dropped=lambda update: update == again)
    assert (dropped[again], dropped[again + 51]) == (3, 63)


def test_the_quantile_counts_and_not_the_mean() -> None:
    def grown(rule: EnvoyGradient) -> float:
        control = rule.control(Random(1))
        control.update(Sample(0, 0.1, 3, False))
        for n in range(10):
            control.update(Sample(0.1, 0.1 if n < 6 else 10 + n, 3, False))
        return control.update(Sample(20, 0.1, 3, False))[0]

    assert grown(EnvoyGradient(requests=1, interval=15)) == 5
    assert grown(EnvoyGradient(requests=1, interval=15, quantile=0.9)) == 3


def test_jitter_spreads_the_measurements_of_many() -> None:
    def measured_again_at(seed: int, jitter: float) -> float:
        control, now = EnvoyGradient(interval=0, jitter=jitter).control(Random(seed)), 0.0
        while control.update(Sample(now, 0.1, int(control.limit), False))[1] != "measuring" or now < 20:
            now += 0.1
        return now

    times = {measured_again_at(seed, 0.15) for seed in range(10)}
    assert 64.8 < min(times) < 68 < max(times) < 74.2  # 50 calls of 100 ms, a minute, and up to 15 % more
    assert len(times) > 5
    assert len({measured_again_at(seed, 0) for seed in range(10)}) == 1
