"""How long to pause before a retry: immutable, pure sequences `(retry, rng) -> seconds`.

`retry` counts from 1: the pause before the second attempt is `backoff(1, rng)`. Nothing is remembered between calls, so
one object serves any number of tasks, and the same `rng` state gives the same pause.

Three rules hold for all of them:

* The cap comes **before** the jitter. Clipping afterwards takes the jitter away just when it is needed: after a long
  outage nearly every client would sleep exactly the cap, and they would all return in one instant.
* Every pause is finite and >= 0, at retry 5000 as well as at retry 1.
* `floor` is the least pause that may be drawn: `U(floor, max(floor, ceiling))`. It never exceeds the cap.

The formulas of `FullJitter`, `EqualJitter` and `DecorrelatedJitter` are those of the AWS Architecture Blog,
"Exponential Backoff And Jitter" (Marc Brooker, 2015), which also measured that full jitter costs the fewest calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from trio_orchestrator.abc import Backoff, RandomSource
from trio_orchestrator.algorithms.argument import at_least, plain_function
from trio_orchestrator.algorithms.chance import CHANCE

MEMORY = 64
"""How many steps of its chain `DecorrelatedJitter` replays at most."""


class _Sequence(Backoff):
    __slots__ = ()

    def preview(self, n: int, rng: RandomSource | None = None) -> tuple[float, ...]:
        """Return the pauses before the first `n` retries, in seconds. Jitter is drawn from `rng`; default: `CHANCE`."""
        return tuple(self(retry, CHANCE if rng is None else rng) for retry in range(1, n + 1))

    def _check(self, **least: float) -> None:
        """Make each named field a float; it must be finite and not below its bound."""
        for name, bound in least.items():
            object.__setattr__(self, name, at_least(name, getattr(self, name), bound, finite=True))

    def _check_floor(self, floor: float, cap: float) -> None:
        if floor > cap:
            raise ValueError(f"floor must be <= cap={cap:g}, got {floor!r}")


def _grown(base: float, factor: float, cap: float, retry: int) -> float:
    """Return `min(cap, base * factor**(retry - 1))`, whatever `retry` is."""
    try:
        grown = base * factor ** (retry - 1)
    except OverflowError:  # the power alone; times a tiny base it may still be small
        grown = _exp(math.log(base) + (retry - 1) * math.log(factor)) if base else 0.0
    return min(cap, grown)


def _exp(logarithm: float) -> float:
    return math.exp(logarithm) if logarithm < 700 else math.inf


def bad_delay(delay: object) -> ValueError:
    """Return the error for a delay that a user's backoff made up."""
    return ValueError(f"backoff must return a finite delay >= 0, got {delay!r}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FullJitter(_Sequence):
    """Pause for `U(floor, max(floor, v))`, `v = min(cap, base * factor**(retry - 1))`: AWS's "full jitter".

    The defaults give up to 1, 2, 4, 8, 16, 30, 30 ... seconds, on average half of it: three retries wait 3.5 s in the
    mean. They are the usual ones of HTTP clients.

    Args:
        base: The ceiling of the first pause, in seconds; 0 makes every pause `floor`.
        cap: The highest ceiling, in seconds; finite.
        factor: What the ceiling grows by each time; at least 1.
        floor: The least pause, in seconds.

    Raises:
        ValueError: An argument is NaN, negative, infinite, `factor` is below 1, or `floor` above `cap`.
    """

    base: float = 1.0
    cap: float = 30.0
    factor: float = 2.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        self._check(base=0, cap=0, factor=1, floor=0)
        self._check_floor(self.floor, self.cap)

    def __call__(self, retry: int, rng: RandomSource) -> float:  # noqa: D102 - as the class says
        floor = self.floor
        spread = _grown(self.base, self.factor, self.cap, retry) - floor
        return floor + spread * rng.random() if spread > 0 else floor


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EqualJitter(_Sequence):
    """Pause for `v/2 + U(0, v/2)`, `v = min(cap, base * factor**(retry - 1))`: AWS's "equal jitter".

    Never shorter than half of the ceiling, for a server that must not be asked again too soon. Costs more calls than
    `FullJitter` in AWS's measurements. `floor` raises the lower end. Defaults as for `FullJitter`.

    Raises:
        ValueError: An argument is NaN, negative, infinite, `factor` is below 1, or `floor` above `cap`.
    """

    base: float = 1.0
    cap: float = 30.0
    factor: float = 2.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        self._check(base=0, cap=0, factor=1, floor=0)
        self._check_floor(self.floor, self.cap)

    def __call__(self, retry: int, rng: RandomSource) -> float:  # noqa: D102 - as the class says
        ceiling = _grown(self.base, self.factor, self.cap, retry)
        return _between(max(self.floor, ceiling / 2), ceiling, rng)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DecorrelatedJitter(_Sequence):
    """Pause for `s = U(base, min(cap, 3 * s))`, starting from `s = base`: AWS's "decorrelated jitter".

    AWS remembers `s` between the retries of one call. To stay a pure function of `(retry, rng)`, this one draws the
    chain anew for each retry, over its last `min(retry, 64)` steps: the pause before a given retry has AWS's
    distribution (the chain forgets its start long before 64 steps), but does not depend on the pause that was slept
    before it. And where AWS clips, `min(cap, U(base, 3 * s))`, this one caps before it draws, so that no two clients
    meet at the cap.

    Args:
        base: The least pause, in seconds.
        cap: The highest ceiling, in seconds; finite, not below `base`.

    Raises:
        ValueError: An argument is NaN, negative or infinite, or `base` is above `cap`.
    """

    base: float = 1.0
    cap: float = 30.0

    def __post_init__(self) -> None:
        self._check(base=0, cap=0)
        if self.base > self.cap:
            raise ValueError(f"base must be <= cap={self.cap:g}, got {self.base!r}")

    def __call__(self, retry: int, rng: RandomSource) -> float:  # noqa: D102 - as the class says
        pause = self.base
        for _ in range(min(retry, MEMORY)):
            pause = _between(self.base, min(self.cap, 3 * pause), rng)
        return pause


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveJitter(_Sequence):
    """Pause for `v + U(0, v)`, `v = min(cap / 2, base * factor**(retry - 1))`: at least `v`, at most twice that.

    For delays that must not be undercut. The halved cap keeps the sum within `cap`. `floor` raises the lower end.

    Raises:
        ValueError: An argument is NaN, negative, infinite, `factor` is below 1, or `floor` above `cap`.
    """

    base: float = 1.0
    cap: float = 30.0
    factor: float = 2.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        self._check(base=0, cap=0, factor=1, floor=0)
        self._check_floor(self.floor, self.cap)

    def __call__(self, retry: int, rng: RandomSource) -> float:  # noqa: D102 - as the class says
        least = _grown(self.base, self.factor, self.cap / 2, retry)
        return _between(max(self.floor, least), 2 * least, rng)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(_Sequence):
    """Pause for `min(cap, base * factor**(retry - 1))`, without jitter: for one client, or to test with.

    Many clients that failed together come back together. The defaults give 1, 2, 4, 8, 16, 30, 30 ... seconds.

    Raises:
        ValueError: An argument is NaN, negative or infinite, or `factor` is below 1.
    """

    base: float = 1.0
    cap: float = 30.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        self._check(base=0, cap=0, factor=1)

    def __call__(self, retry: int, rng: RandomSource) -> float:  # noqa: D102 - as the class says
        return _grown(self.base, self.factor, self.cap, retry)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(_Sequence):
    """Pause for `min(cap, base + step * (retry - 1))`, without jitter. The defaults give 1, 2, 3 ... 30, 30 seconds.

    Raises:
        ValueError: An argument is NaN, negative or infinite.
    """

    base: float = 1.0
    step: float = 1.0
    cap: float = 30.0

    def __post_init__(self) -> None:
        self._check(base=0, step=0, cap=0)

    def __call__(self, retry: int, rng: RandomSource) -> float:  # noqa: D102 - as the class says
        return min(self.cap, self.base + self.step * (retry - 1))


@final
@dataclass(frozen=True, slots=True)
class Constant(_Sequence):
    """Pause for `delay` seconds each time, without jitter; 0 retries at once (a checkpoint is passed all the same).

    Raises:
        ValueError: `delay` is NaN, negative or infinite.
    """

    delay: float

    def __post_init__(self) -> None:
        self._check(delay=0)

    def __call__(self, retry: int, rng: RandomSource) -> float:  # noqa: D102 - as the class says
        return self.delay


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fibonacci(_Sequence):
    """Pause for `min(cap, base * F(retry))`, without jitter. The defaults give 1, 1, 2, 3, 5, 8, 13, 21, 30 ... s.

    Grows by the golden ratio, 1.618: gentler than doubling.

    Raises:
        ValueError: An argument is NaN, negative or infinite.
    """

    base: float = 1.0
    cap: float = 30.0

    def __post_init__(self) -> None:
        self._check(base=0, cap=0)

    def __call__(self, retry: int, rng: RandomSource) -> float:  # noqa: D102 - as the class says
        pause, following = self.base, self.base
        for _ in range(retry - 1):
            if pause >= self.cap:
                break
            pause, following = following, pause + following
        return min(self.cap, pause)


@final
@dataclass(frozen=True, slots=True)
class Custom(_Sequence):
    """Pause for `fn(retry, rng)` seconds. `fn` is a plain function, and should draw its jitter from `rng`.

    Raises:
        TypeError: `fn` is not a plain function.
        ValueError: On a call: `fn` returned NaN, a negative or an infinite number. Nothing is clipped silently.
    """

    fn: Callable[[int, RandomSource], float]

    def __post_init__(self) -> None:
        plain_function("fn", self.fn)

    def __call__(self, retry: int, rng: RandomSource) -> float:  # noqa: D102 - as the class says
        delay = self.fn(retry, rng)
        if not 0 <= delay < math.inf:
            raise bad_delay(delay)
        return delay


def _between(low: float, high: float, rng: RandomSource) -> float:
    """Draw from `U(low, high)`; `low` if the interval is empty."""
    return low + (high - low) * rng.random() if high > low else low
