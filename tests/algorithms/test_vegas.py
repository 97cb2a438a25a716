from __future__ import annotations

import math
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulations.runaway import feed, of_capacity
from trio_orchestrator.abc import Sample
from trio_orchestrator.algorithms.vegas import Vegas


def test_with_a_latency_that_stays_it_grows_to_its_maximum_in_90_updates() -> None:
    limits = feed(Vegas(), lambda limit, update: 0.1, 120)
    assert limits[1:4] == [20, 26, 32]  # the first sample only tells the latency
    assert limits.index(1000) == 90
    assert set(limits[90:]) == {1000}


def test_on_a_capacity_of_50_it_settles_at_55() -> None:
    limits = feed(Vegas(), of_capacity, 300)
    assert limits[:10] == [20, 20, 26, 32, 38, 44, 50, 56, 55, 55]
    assert set(limits[8:]) == {55}


def test_its_probes_do_not_raise_it() -> None:
    """A probe that believed what it sees under load would find 10 % more each time, and never come back."""
    limits = feed(Vegas(), of_capacity, 30_000)
    probes = [update for update in range(1, len(limits)) if limits[update] < limits[update - 1] == 55]
    assert 10 < len(probes) < 30
    assert {limits[probe + step] for probe in probes for step in range(10)} == {24.5}
    assert set(limits[8:]) == {55, 24.5}


def test_it_follows_a_service_that_has_become_slower_for_good() -> None:
    limits = feed(Vegas(), lambda limit, update: 0.1 if update < 50 else 0.2, 6000)
    assert min(limits[50:]) < 50
    assert limits[-1] == 1000


def test_the_queue_is_measured_in_steps_of_the_logarithm() -> None:
    def step(queue: float, limit: float = 200) -> float:
        control = Vegas(initial=limit).control(Random(1))
        control.update(Sample(0, 1, int(limit), False))
        rtt = 1 / (1 - queue / limit)
        return control.update(Sample(1, rtt, int(limit), False))[0] - limit

    assert [step(queue) for queue in (0, 1.9, 2.1, 4.9, 5.1, 11.9, 12.1, 150)] == [12, 12, 2, 2, 0, 0, -2, -2]


def test_smoothing_makes_a_part_of_each_step() -> None:
    assert feed(Vegas(smoothing=0.5), lambda limit, update: 0.1, 3) == [20, 20, 23, 26]


def test_a_call_without_a_duration_queues_nowhere() -> None:
    assert feed(Vegas(), lambda limit, update: 0.0, 3) == [20, 20, 26, 32]


@settings(max_examples=20)
@given(capacity=st.integers(1, 200))
def test_it_settles_a_few_above_any_capacity_for_good(capacity: int) -> None:
    """Also where the first call was already one of too many."""
    late = feed(Vegas(), lambda limit, update: max(1.0, limit / capacity), 8000)[4000:]
    unit = max(1, math.floor(math.log10(max(late))))
    assert capacity <= max(late) <= capacity + 6 * unit + 1


def test_a_drop_in_a_probe_lowers_what_it_will_come_back_to() -> None:
    rule = Vegas(initial=100, maximum=100)
    limits = feed(rule, lambda limit, update: 0.1, 6000)
    probe = limits.index(44)
    dropped = feed(rule, lambda limit, update: 0.1, probe + 14, dropped=lambda update: update == probe)
    assert dropped[probe : probe + 11] == [44] * 11
    assert dropped[probe + 11 :] == [90, 96, 100, 100]
