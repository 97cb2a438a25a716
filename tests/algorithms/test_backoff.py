from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.abc import Backoff, RandomSource
from trio_orchestrator.algorithms.backoff import (
    AdditiveJitter,
    Constant,
    Custom,
    DecorrelatedJitter,
    EqualJitter,
    Exponential,
    Fibonacci,
    FullJitter,
    Linear,
)

STEADY = (Exponential(), Linear(), Constant(30), Fibonacci())
JITTERED = (FullJitter(), EqualJitter(), DecorrelatedJitter(), AdditiveJitter())
seconds = st.floats(0, 1e9)


class Fixed:
    """A random source that always draws the same."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.value


LOWEST, HIGHEST = Fixed(0.0), Fixed(math.nextafter(1, 0))


def range_of(backoff: Backoff, retry: int) -> tuple[float, float]:
    return backoff(retry, LOWEST), round(backoff(retry, HIGHEST), 9)


# ------------------------------------------------------------------------------------------------- formulas


def test_the_steady_ones_follow_their_formulas() -> None:
    assert Exponential().preview(7) == (1, 2, 4, 8, 16, 30, 30)
    assert Exponential(base=0.5, factor=3, cap=10).preview(4) == (0.5, 1.5, 4.5, 10)
    assert Linear(base=1, step=2, cap=6).preview(4) == (1, 3, 5, 6)
    assert Constant(0.25).preview(3) == (0.25, 0.25, 0.25)
    assert Fibonacci().preview(10) == (1, 1, 2, 3, 5, 8, 13, 21, 30, 30)


@pytest.mark.parametrize(("retry", "ceiling"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 30), (7, 30), (1000, 30)])
def test_the_jittered_ones_draw_from_their_intervals(retry: int, ceiling: float) -> None:
    assert range_of(FullJitter(), retry) == (0, ceiling)
    assert range_of(EqualJitter(), retry) == (ceiling / 2, ceiling)
    half = min(ceiling, 15)
    assert range_of(AdditiveJitter(), retry) == (half, 2 * half)


def test_the_decorrelated_chain_triples_up_to_the_cap() -> None:
    highest = [DecorrelatedJitter()(retry, HIGHEST) for retry in (1, 2, 3, 4, 5)]
    assert highest == pytest.approx([3, 9, 27, 30, 30])
    assert [DecorrelatedJitter()(retry, LOWEST) for retry in (1, 2, 64, 5000)] == [1, 1, 1, 1]


def test_the_decorrelated_chain_is_replayed_over_64_steps_at_most() -> None:
    class Counting(Random):
        drawn = 0

        def random(self) -> float:
            self.drawn += 1
            return super().random()

    for retry, draws in ((1, 1), (10, 10), (64, 64), (65, 64), (5000, 64)):
        rng = Counting(1)
        DecorrelatedJitter()(retry, rng)
        assert rng.drawn == draws


def test_the_floor_is_the_least_pause_and_stays_below_the_cap() -> None:
    assert [range_of(FullJitter(floor=3), retry) for retry in (1, 2, 3)] == [(3, 3), (3, 3), (3, 4)]
    assert range_of(EqualJitter(floor=3), 3) == (3, 4)
    assert range_of(AdditiveJitter(floor=3), 2) == (3, 4)
    assert range_of(FullJitter(floor=30), 9) == (30, 30)


def test_a_base_of_zero_never_pauses() -> None:
    for backoff in (FullJitter(base=0), EqualJitter(base=0), AdditiveJitter(base=0), Exponential(base=0)):
        assert [backoff(retry, Random(1)) for retry in (1, 2, 5000)] == [0, 0, 0]
    assert Fibonacci(base=0).preview(3) == (0, 0, 0)


def test_the_defaults_wait_three_and_a_half_seconds_in_the_mean() -> None:
    n = 20_000
    mean = sum(sum(FullJitter().preview(3, Random(seed))) for seed in range(n)) / n
    sigma = math.sqrt((1 + 4 + 16) / 12 / n)  # U(0, c) has the variance c**2 / 12
    assert abs(mean - 3.5) < 4 * sigma


# ------------------------------------------------------------------------------------------------ properties


def same_or_finite(backoff: Backoff, retry: int, seed: int, cap: float) -> None:
    pause = backoff(retry, Random(seed))
    assert 0 <= pause <= cap
    assert backoff(retry, Random(seed)) == pause  # pure


@given(
    base=seconds,
    cap=seconds,
    factor=st.floats(1, 1e6),
    floor=st.floats(0, 1),
    retry=st.integers(1, 10_000),
    seed=st.integers(0, 2**32),
)
def test_every_pause_is_pure_finite_and_within_the_cap(
    base: float, cap: float, factor: float, floor: float, retry: int, seed: int
) -> None:
    floor *= cap
    for kind in (FullJitter, EqualJitter, AdditiveJitter):
        same_or_finite(kind(base=base, cap=cap, factor=factor, floor=floor), retry, seed, cap)
        assert kind(base=base, cap=cap, factor=factor, floor=floor)(retry, Random(seed)) >= floor
    same_or_finite(Exponential(base=base, cap=cap, factor=factor), retry, seed, cap)
    same_or_finite(DecorrelatedJitter(base=min(base, cap), cap=cap), retry, seed, cap)
    same_or_finite(Linear(base=base, step=factor, cap=cap), retry, seed, cap)
    same_or_finite(Fibonacci(base=base, cap=cap), retry, seed, cap)


@given(base=st.floats(0, 1e308), factor=st.floats(1, 1e308), retry=st.integers(1, 10_000))
def test_the_exponential_never_shrinks(base: float, factor: float, retry: int) -> None:
    backoff = Exponential(base=base, cap=1e308, factor=factor)
    assert backoff(retry + 1, LOWEST) >= backoff(retry, LOWEST) * (1 - 1e-9)


def test_a_tiny_base_is_still_tiny_where_the_power_alone_overflows() -> None:
    assert Exponential(base=1e-308, cap=1e300)(1101, LOWEST) == pytest.approx(1e-308 * 2.0**1000 * 2.0**100, rel=1e-6)


@pytest.mark.parametrize("backoff", [*STEADY, *JITTERED], ids=repr)
def test_polly_2163_retry_5000_pauses_for_the_cap_at_most(backoff: Backoff) -> None:
    for retry in (1023, 1024, 1025, 5000):
        pause = backoff(retry, HIGHEST)
        assert pause == pytest.approx(30)
        assert pause <= 30


def test_stamina_104_integers_do_not_overflow_above_1024_retries() -> None:
    assert Exponential(base=1, cap=30, factor=2)(1100, LOWEST) == 30
    assert FullJitter(base=1, cap=30, factor=2)(1100, HIGHEST) <= 30
    assert Fibonacci(base=1, cap=30)(1_000_000, LOWEST) == 30


@pytest.mark.parametrize("backoff", JITTERED, ids=repr)
def test_no_client_sleeps_exactly_the_cap(backoff: Backoff) -> None:
    rng = Random(1)
    pauses = [backoff(retry, rng) for retry in (6, 8, 12, 100) for _ in range(5000)]
    assert max(pauses) < 30
    assert len(set(pauses)) == len(pauses)


# ---------------------------------------------------------------------------------------------- distribution


def distance(sample: list[float], cdf: Callable[[float], float]) -> float:
    """Return the Kolmogorov-Smirnov distance of a sample from a distribution."""
    ordered, n = sorted(sample), len(sample)
    return max(max((i + 1) / n - cdf(x), cdf(x) - i / n) for i, x in enumerate(ordered))


def bound(n: int) -> float:
    """Return the distance that a true sample of `n` exceeds once in 10 000 tries: sqrt(-ln(alpha / 2) / 2 / n)."""
    return math.sqrt(-math.log(1e-4 / 2) / 2 / n)


def uniform(low: float, high: float) -> Callable[[float], float]:
    return lambda x: min(1.0, max(0.0, (x - low) / (high - low)))


N = 4000


def sample(backoff: Callable[[int, RandomSource], float], retry: int) -> list[float]:
    rng = Random(retry)
    return [backoff(retry, rng) for _ in range(N)]


def test_full_jitter_is_uniform_from_zero_to_the_capped_ceiling() -> None:
    def clipped_afterwards(retry: int, rng: RandomSource) -> float:
        return min(30.0, rng.uniform(0, 2.0 ** (retry - 1)))

    for retry, ceiling in ((1, 1), (4, 8), (6, 30), (12, 30)):
        expected = uniform(0, ceiling)
        assert distance(sample(FullJitter(), retry), expected) < bound(N)
        assert distance(sample(EqualJitter(), retry), expected) > 5 * bound(N)  # planted: half of it is missing
    assert distance(sample(clipped_afterwards, 12), uniform(0, 30)) > 5 * bound(N)  # planted: all at the cap


def test_equal_and_additive_jitter_are_uniform_in_their_upper_halves() -> None:
    assert distance(sample(EqualJitter(), 4), uniform(4, 8)) < bound(N)
    assert distance(sample(AdditiveJitter(), 4), uniform(8, 16)) < bound(N)
    assert distance(sample(AdditiveJitter(), 9), uniform(15, 30)) < bound(N)
    assert distance(sample(FullJitter(), 4), uniform(4, 8)) > 5 * bound(N)


def test_decorrelated_jitter_has_the_distribution_of_a_remembered_chain() -> None:
    rng, chain = Random(7), []
    for _ in range(N):
        pause = 1.0
        for _ in range(5):
            pause = rng.uniform(1, min(30, 3 * pause))
        chain.append(pause)
    chain.sort()

    def cdf(x: float) -> float:
        return sum(pause <= x for pause in chain) / N

    two_samples = bound(N) * math.sqrt(2)
    assert distance(sample(DecorrelatedJitter(), 5)[:1000], cdf) < 2 * two_samples
    assert distance(sample(DecorrelatedJitter(), 2)[:1000], cdf) > 5 * two_samples


def test_the_arrivals_of_many_clients_at_the_cap_are_flat() -> None:
    bins, n = 30, 6000
    counts = [0] * bins
    rng = Random(3)
    for _ in range(n):
        counts[int(FullJitter()(20, rng) / 30 * bins)] += 1
    chi_square = sum((count - n / bins) ** 2 / (n / bins) for count in counts)
    assert chi_square < 65.2  # 29 degrees of freedom, exceeded once in 8000


# --------------------------------------------------------------------------------------------------- custom


def test_custom_gets_the_retry_and_the_random_source() -> None:
    backoff = Custom(lambda retry, rng: retry + rng.random())
    assert backoff.preview(3, Fixed(0.5)) == (1.5, 2.5, 3.5)


@pytest.mark.parametrize("delay", [math.nan, math.inf, -math.inf, -1, -1e-300])
def test_cockatiel_86_a_custom_delay_that_is_no_delay_is_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="backoff must return a finite delay >= 0, got ") as caught:
        Custom(lambda retry, rng: delay)(1, Random(1))
    assert str(caught.value) == f"backoff must return a finite delay >= 0, got {delay!r}"


def test_preview_draws_from_the_given_source() -> None:
    assert FullJitter().preview(5, Random(9)) == FullJitter().preview(5, Random(9))
    assert FullJitter().preview(5, Random(9)) != FullJitter().preview(5, Random(10))
    assert len(FullJitter().preview(5)) == 5
    assert FullJitter().preview(0) == ()


def test_backoffs_are_immutable_values() -> None:
    backoff = FullJitter(base=2)
    with pytest.raises(AttributeError):
        backoff.base = 3  # type: ignore[misc]
    assert backoff == FullJitter(base=2.0)
    assert hash(backoff) == hash(FullJitter(base=2.0))
    assert repr(backoff) == "FullJitter(base=2.0, cap=30.0, factor=2.0, floor=0.0)"
