"""Clients that compete for one row: AWS's simulator of backoff and jitter, driven by our backoffs.

The model is that of aws-samples/aws-arch-backoff-simulator, which made the figures of "Exponential Backoff And Jitter"
(AWS Architecture Blog, 2015). One row has a version. A client reads it, and writes with the version that it read; the
write succeeds if the version is still that. Each message takes `|N(10, 2)|` ms on its way, so a round takes four of
them. A client whose write fails pauses, and begins another round. All clients start at once.

Everything here returns data; to plot it: `table(STRATEGIES, range(10, 200, 10), trials=100, seed=1)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random
from statistics import fmean, stdev
from typing import TypeAlias

from trio_orchestrator.abc import Backoff
from trio_orchestrator.algorithms.backoff import Constant, DecorrelatedJitter, EqualJitter, Exponential, FullJitter

Message: TypeAlias = tuple[float, int, int, int, int | None]
"""When it reaches the server, a tie-breaker, the client, its retries so far, the version to write (None: it reads)."""

LEG = 0.010
LEG_DEVIATION = 0.002
BASE = 0.005
CAP = 2.0

# AWS's `expo(n)` is `min(cap, base * 2**n)` with n = 1 for the first retry, so its first ceiling is twice its base.
STRATEGIES: Mapping[str, Backoff] = {
    "none": Constant(0),
    "exponential": Exponential(base=2 * BASE, cap=CAP),
    "equal": EqualJitter(base=2 * BASE, cap=CAP),
    "full": FullJitter(base=2 * BASE, cap=CAP),
    "decorrelated": DecorrelatedJitter(base=BASE, cap=CAP),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What it took until each client had written once."""

    seconds: float
    """When the last client knew."""
    calls: int
    """How many writes were sent."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The mean of some trials, and their standard deviation."""

    milliseconds: float
    calls: float
    milliseconds_deviation: float
    calls_deviation: float


class AwsDecorrelated:
    """AWS's own decorrelated jitter, which remembers its last pause and clips it: `s = min(cap, U(base, 3 * s))`."""

    def __init__(self) -> None:
        self.pause = BASE

    def __call__(self, retry: int, rng: Random) -> float:
        self.pause = min(CAP, rng.uniform(BASE, 3 * self.pause))
        return self.pause


def simulate(backoff: Backoff | type[AwsDecorrelated], clients: int, rng: Random) -> Trial:
    """Let so many clients write the row once each. A class is made anew for each client."""

    def leg() -> float:
        return abs(rng.gauss(LEG, LEG_DEVIATION))

    number = count()
    pauses = [backoff() if isinstance(backoff, type) else backoff for _ in range(clients)]
    # (when it reaches the server, tie-breaker, client, retries so far, the version that it writes or None: a read)
    heap: list[tuple[float, int, int, int, int | None]] = [
        (leg(), next(number), one, 0, None) for one in range(clients)
    ]
    heapify(heap)
    version = calls = 0
    end = 0.0
    while heap:
        now, _, client, retry, written = heappop(heap)
        if written is None:
            heappush(heap, (now + leg() + leg(), next(number), client, retry, version))
            continue
        calls += 1
        answered_at = now + leg()
        end = max(end, answered_at)
        if written == version:
            version += 1
        else:
            pause = pauses[client](retry + 1, rng)
            heappush(heap, (answered_at + leg() + pause, next(number), client, retry + 1, None))
    return Trial(end, calls)


def figure(backoff: Backoff | type[AwsDecorrelated], clients: int, *, trials: int, seed: int) -> Figure:
    """Return the mean and the deviation of so many trials."""
    rng = Random(f"{seed} {clients}")
    runs = [simulate(backoff, clients, rng) for _ in range(trials)]
    milliseconds, calls = [1000 * run.seconds for run in runs], [float(run.calls) for run in runs]
    if trials == 1:
        return Figure(milliseconds[0], calls[0], math.nan, math.nan)
    return Figure(fmean(milliseconds), fmean(calls), stdev(milliseconds), stdev(calls))


def table(
    strategies: Mapping[str, Backoff], clients: Iterable[int], *, trials: int, seed: int
) -> dict[str, dict[int, Figure]]:
    """Return the figure of each strategy for each number of clients."""
    numbers = tuple(clients)
    return {
        name: {number: figure(backoff, number, trials=trials, seed=seed) for number in numbers}
        for name, backoff in strategies.items()
    }
