from __future__ import annotations

from random import Random

from tests.simulations.arc import PublishedARC
from tests.simulations.runaway import feed
from trio_orchestrator.abc import Control, Limit, Sample
from trio_orchestrator.algorithms.arc import ARC


def fed(rule: Limit, *rtts: float, in_flight: int = 0) -> list[float]:
    """Return the limit after each call; one after the other, of a full house unless it is said how many."""
    control, now, limits = rule.control(Random(1)), 0.0, []
    for rtt in rtts:
        limits.append(control.update(Sample(now, rtt, in_flight or int(control.limit), False))[0])
        now += rtt
    return limits


def test_it_grows_by_1_each_round_trip_that_reaches_the_limit() -> None:
    assert fed(ARC(), *[0.1] * 5) == [1, 2, 3, 4, 5]
    assert feed(ARC(), lambda limit, update: 0.1, 300)[-1] == 200


def test_many_calls_in_one_round_trip_add_1() -> None:
    control = ARC().control(Random(1))
    control.update(Sample(0, 0.1, 1, False))
    limits = [control.update(Sample(0.1 + n / 1000, 0.1, 1, False))[0] for n in range(50)]
    assert set(limits) == {2}


def test_above_the_band_it_shrinks_by_a_tenth_rounded_down() -> None:
    assert fed(ARC(initial=20), 0.1, 0.1, 0.5)[1:] == [21, 18]


def test_within_the_band_it_stays() -> None:
    rtts = (0.1, 0.2, 0.1, 0.2)
    assert fed(ARC(initial=20), *rtts, 0.17)[-1] == fed(ARC(initial=20), *rtts)[-1]


def test_a_tie_is_no_reason_to_shrink() -> None:
    """Of a latency that never varies, and a limit that is not reached, the published rule makes a decay."""
    quiet = [0.1] * 40
    assert fed(ARC(initial=20), *quiet, in_flight=3) == [20] * 40
    assert fed(ARC(initial=20), *[0.1 + n % 3 * 1e-9 for n in range(40)], in_flight=3) == [20] * 40
    assert fed(ARC(initial=20), *[0.1000004 + n % 2 * 2e-7 for n in range(40)], in_flight=3) == [20] * 40
    theirs = PublishedARC().control(Random(1))
    grow_to(theirs, 20)
    after = [theirs.update(Sample(100 + n / 10, 0.1, 3, False))[0] for n in range(40)]
    assert after[-1] == 3  # where it is reached again


def grow_to(control: Control, limit: int) -> None:
    now = 0.0
    while control.limit < limit:
        control.update(Sample(now, 0.1, int(control.limit), False))
        now += 0.1


def test_a_drop_before_the_first_answer_counts_too() -> None:
    limits = feed(ARC(initial=50), lambda limit, update: 1.0, 30, dropped=lambda update: True)
    assert limits[:4] == [50, 45, 40, 36]
    assert limits[-1] == 1


def test_an_old_drop_does_not_shrink_again_but_is_no_reason_to_grow_either() -> None:
    control = ARC().control(Random(1))
    grow_to(control, 10)
    limit, _ = control.update(Sample(5.0, 0.1, 10, True))
    assert limit == 9
    control.update(Sample(5.05, 0.06, 9, True))
    assert control.update(Sample(5.1, 0.1, 9, False)) == (9, "steady")
    assert control.update(Sample(5.2, 0.1, 9, False)) == (10, "growing")


def test_what_was_slow_before_the_limit_fell_does_not_shrink_it_again() -> None:
    control = ARC().control(Random(1))
    grow_to(control, 10)
    assert control.update(Sample(5.0, 0.5, 10, False)) == (9, "queueing")
    assert control.update(Sample(5.1, 5.0, 10, False)) == (9, "steady")
