"""AWS's figures of backoff and jitter, from our backoffs: `python -m pytest tests/simulations` takes three seconds.

30 trials each. The published means are held within `3 * sigma / sqrt(30)`, with the published deviation at 100 clients
(time 49 / 3545 / 587 / 569 ms, calls 36 / 53 / 8 / 7), and with that of our own trials where none was published. Other
seeds pass as well, but not all: 2 x 12 figures at three sigma fail by chance once in a while.
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from random import Random

import pytest

from tests.simulations import EXPECTED
from tests.simulations.backoff import CAP, STRATEGIES, AwsDecorrelated, Figure, figure, simulate, table
from trio_orchestrator.algorithms.backoff import Constant

PUBLISHED = EXPECTED["aws_backoff"]
TRIALS, SEED = PUBLISHED["trials"], PUBLISHED["seed"]
CLIENTS = (10, 50, 100)
EXACT = ("none", "exponential", "equal", "full")


@cache
def ours(name: str, clients: int) -> Figure:
    return figure(STRATEGIES[name], clients, trials=TRIALS, seed=SEED)


def assert_mean(got: Figure, mean: tuple[float, float], sigma: tuple[float, float] | None) -> None:
    milliseconds, calls = (got.milliseconds_deviation, got.calls_deviation) if sigma is None else sigma
    assert got.milliseconds == pytest.approx(mean[0], abs=3 * milliseconds / sqrt(TRIALS), rel=0)
    assert got.calls == pytest.approx(mean[1], abs=3 * calls / sqrt(TRIALS), rel=0)


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("name", EXACT)
def test_the_published_means(name: str, clients: int) -> None:
    sigma = PUBLISHED["sigma_at_100_ms_calls"][name] if clients == 100 else None
    assert_mean(ours(name, clients), PUBLISHED["means_ms_calls"][str(clients)][name], sigma)


@pytest.mark.parametrize("clients", CLIENTS)
def test_the_decorrelated_jitter_of_aws_in_our_simulator(clients: int) -> None:
    """It remembers its last pause, and clips it. That it comes out as published vouches for the simulator."""
    got = figure(AwsDecorrelated, clients, trials=TRIALS, seed=SEED)
    sigma = PUBLISHED["sigma_at_100_ms_calls"]["decorrelated"] if clients == 100 else None
    assert_mean(got, PUBLISHED["means_ms_calls"][str(clients)]["decorrelated"], sigma)


@pytest.mark.parametrize("clients", CLIENTS)
def test_our_decorrelated_jitter(clients: int) -> None:
    """Ours draws its chain anew each time: its own figures, of 300 trials, not those of AWS.

    Below the cap the two differ in that a short pause of AWS's is likely followed by a short one. Drawn anew it is not,
    which saves calls: 6 % at 50 clients, 9 % at 100; capping first saves time at 100 (each was measured by itself).
    """
    got, measured = ours("decorrelated", clients), PUBLISHED["ours_decorrelated"]
    key = str(clients)
    assert_mean(got, measured["means_ms_calls"][key], measured["sigma_ms_calls"][key])
    published = PUBLISHED["means_ms_calls"][key]["decorrelated"]
    assert got.calls < published[1] * (1.05 if clients == 10 else 0.96)
    assert clients < 100 or got.milliseconds < 0.9 * published[0]


@pytest.mark.parametrize("clients", [50, 100])
def test_full_jitter_needs_the_fewest_calls(clients: int) -> None:
    full = ours("full", clients).calls
    assert all(full <= ours(name, clients).calls for name in STRATEGIES)


def test_what_jitter_is_worth_at_100_clients() -> None:
    full, equal, exponential = (ours(name, 100) for name in ("full", "equal", "exponential"))
    assert full.calls < exponential.calls / 2
    assert full.milliseconds < equal.milliseconds < exponential.milliseconds / 5


def test_no_backoff_is_quick_and_costs_the_most_calls() -> None:
    none, *others = (ours(name, 100) for name in STRATEGIES)
    assert all(none.milliseconds < other.milliseconds and none.calls > other.calls for other in others)


def test_the_first_ceiling_is_ten_milliseconds_and_the_last_the_cap() -> None:
    class One(Random):
        def random(self) -> float:
            return 1.0

    for name in ("exponential", "equal", "full"):
        assert [STRATEGIES[name](retry, One()) for retry in (1, 2, 8, 9, 50)] == [0.01, 0.02, 1.28, CAP, CAP]


def test_a_client_alone_writes_once_in_four_legs() -> None:
    class Punctual(Random):
        def gauss(self, mu: float = 0, sigma: float = 1) -> float:
            return mu

    trial = simulate(Constant(1), 1, Punctual())
    assert trial.calls == 1
    assert trial.seconds == pytest.approx(0.040)
    both = simulate(Constant(1), 2, Punctual())  # the second loses, and begins again a leg and a pause later
    assert both.calls == 3
    assert both.seconds == pytest.approx(0.040 + 1 + 0.040)


def test_a_table_to_plot() -> None:
    strategies = {name: STRATEGIES[name] for name in ("none", "full")}
    got = table(strategies, range(10, 30, 10), trials=2, seed=1)
    assert {name: list(row) for name, row in got.items()} == {"none": [10, 20], "full": [10, 20]}
    assert got == table(strategies, range(10, 30, 10), trials=2, seed=1)
