"""What the adaptive limits share: one step a round trip, bounds, and what a drop does.

Three rules hold for each of them:

* **One step a round trip.** What an attempt tells is about the limit that was in force when it started. So after a step
  the next one is due when an attempt has ended that started behind it; what started before (an older *epoch*) is
  measured, and moves nothing. A hundred attempts that fail together are one reason to slow down, not a hundred.
* **No step while idle.** If fewer than half of the limit were in flight, it was not the limit that made the latency
  what it is, and a sample speaks neither for a higher one nor for a lower one (Netflix `concurrency-limits`).
* **A drop teaches no latency.** It multiplies the limit by `shrink`; how long the other side took to fail says nothing
  of how fast it answers (vectordotdev/vector#3493), and a time-out always takes the same time
  (Netflix/concurrency-limits#137).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Final, final

from trio_orchestrator.abc import Control, RandomSource, Sample
from trio_orchestrator.algorithms.argument import above, at_least, count

DROPPED: Final = "dropped"
GROWING: Final = "growing"
IDLE: Final = "app-limited"
OLD: Final = "same round trip"
QUEUEING: Final = "queueing"
PROBED: Final = "probed"
PROBES: Final = 10
PROBING: Final = "probing"
STEADY: Final = "steady"

TICK: Final = 1e-6  # what is due in less is due: sums of seconds are not exact


class Bounded:
    """The fields that the rules share, and their checks."""

    __slots__ = ()

    minimum: float
    maximum: float
    shrink: float

    def _check_bounds(self) -> None:
        self._keep("minimum", count("minimum", at_least("minimum", self.minimum, 1, finite=True), 1))
        self._keep("maximum", count("maximum", at_least("maximum", self.maximum, self.minimum), 1))
        self._keep("shrink", between("shrink", self.shrink, 0, 1))

    def _check_initial(self, initial: float) -> None:
        self._keep("initial", count("initial", at_least("initial", initial, self.minimum, finite=True), 1))
        if initial > self.maximum:
            raise ValueError(f"initial must be <= maximum={self.maximum:g}, got {initial!r}")

    def _keep(self, name: str, value: float) -> None:
        object.__setattr__(self, name, value)

    def clamp(self, limit: float) -> float:
        """Return the nearest limit within the bounds."""
        return min(max(limit, self.minimum), self.maximum)


def between(name: str, value: object, low: float, high: float) -> float:
    """Return `value` as a float, or raise: it must be a number strictly between `low` and `high`."""
    number = above(name, value, low)
    if not number < high:
        raise ValueError(f"{name} must be < {high:g}, got {value!r}")
    return number


def fraction(name: str, value: object) -> float:
    """Return `value` as a float, or raise: it must be a number above 0 and at most 1."""
    number = above(name, value, 0)
    if not number <= 1:
        raise ValueError(f"{name} must be <= 1, got {value!r}")
    return number


@final
class Round:
    """What the attempts have told that ended since the last step."""

    __slots__ = ("count", "least", "opened_at", "peak", "total")

    def __init__(self) -> None:
        self.open(-math.inf)

    def open(self, now: float) -> None:
        """Begin anew: a step was made."""
        self.opened_at: float = now
        self.total: float = 0.0
        self.count: int = 0
        self.least: float = math.inf
        """The shortest, in seconds."""
        self.peak: int = 0
        """The most that were in flight."""

    def add(self, sample: Sample) -> None:
        """Take in an attempt that was answered."""
        self.total += sample.rtt
        self.count += 1
        self.least = min(self.least, sample.rtt)
        self.peak = max(self.peak, sample.in_flight)

    @property
    def rtt(self) -> float:
        """The mean of all, in seconds: the first one to come back is not the typical one."""
        return self.total / self.count

    def is_over(self, sample: Sample) -> bool:
        """Tell whether `sample` started behind the last step: a round trip has passed."""
        return started_behind(sample, self.opened_at)


@final
class Epoch:
    """Whether the limit may fall again: not before a round trip at the lower limit has shown what that does."""

    __slots__ = ("_lowered_at", "_seen")

    def __init__(self) -> None:
        self._lowered_at: float = -math.inf
        self._seen: bool = True

    def lower(self, now: float) -> None:
        """Say that the limit fell."""
        self._lowered_at = now
        self._seen = False

    def take(self, sample: Sample) -> None:
        """Take in an attempt that was answered."""
        self._seen = self._seen or started_behind(sample, self._lowered_at)

    def is_over(self, sample: Sample) -> bool:
        """Tell whether a drop may lower the limit: it, or something that was answered, started at the lower one.

        The second half is for drops that take long: if attempts hang, and time out after ten round trips of the others,
        those that hang now tell in time.
        """
        return self._seen or started_behind(sample, self._lowered_at)


def started_behind(sample: Sample, at: float) -> bool:
    """Tell whether an attempt started at `at` or later."""
    return sample.start >= at


def end_of(sample: Sample) -> float:
    """Return when an attempt ended."""
    return sample.start + sample.rtt


class Stepping(Control):
    """The run state of a limit that makes one step a round trip; the rule says where to."""

    __slots__ = ("_epoch", "_round", "_rule", "limit")

    def __init__(self, rule: Bounded, initial: float) -> None:
        self._rule: Bounded = rule
        self._round: Round = Round()
        self._epoch: Epoch = Epoch()
        self.limit: float = initial

    def update(self, sample: Sample) -> tuple[float, str]:
        """Learn from an attempt, and step if a round trip has passed."""
        if sample.dropped:
            return self._drop(sample)
        self._epoch.take(sample)
        self._learn(sample)
        self._round.add(sample)
        if not self._round.is_over(sample):
            return self.limit, OLD
        wanted, reason = self._aim(self._round)
        if wanted != self.limit and self._round.peak * 2 < self.limit:
            wanted, reason = self.limit, IDLE
        return self._step(sample, wanted, reason)

    def _learn(self, sample: Sample) -> None:
        """Learn from an attempt that was answered, whatever its epoch."""

    @abstractmethod
    def _aim(self, seen: Round) -> tuple[float, str]:
        """Return where the limit should go, and why."""

    def _drop(self, sample: Sample) -> tuple[float, str]:
        if not self._epoch.is_over(sample):
            self._round.open(end_of(sample))  # not a round trip without a drop
            return self.limit, OLD
        return self._step(sample, self.limit * self._rule.shrink, DROPPED)

    def _step(self, sample: Sample, wanted: float, reason: str) -> tuple[float, str]:
        limit, self.limit = self.limit, self._rule.clamp(wanted)
        self._round.open(end_of(sample))
        if self.limit < limit:
            self._epoch.lower(end_of(sample))
        return self.limit, reason


class Probing(Stepping):
    """A stepping limit that now and then makes room, to see how fast the other side is without a queue of ours.

    A probe lowers the limit, so far that nothing of ours can queue, until `PROBES` attempts were answered that started
    behind that; then the limit is back. Due every `U(0.5, 1) * 30 * limit` attempts, as in Netflix's `VegasLimit`,
    which then just believes the next sample, whatever queues in it: with steady demand each of its probes raises the
    baseline, and so the limit, for ever.
    """

    __slots__ = ("_age", "_due", "_held", "_rng")

    def __init__(self, rule: Bounded, initial: float, rng: RandomSource) -> None:
        super().__init__(rule, initial)
        self._rng = rng
        self._held: float = 0.0  # what the limit will be again, during a probe
        self._rest()

    @abstractmethod
    def _room(self) -> float:
        """Return the limit for a probe: half of what the other side can serve at once, if the present one is right."""

    @abstractmethod
    def _measured(self, seen: Round) -> None:
        """Take what a probe has seen as the new baseline."""

    def update(self, sample: Sample) -> tuple[float, str]:
        """Learn from an attempt, step if a round trip has passed, and probe when it is time."""
        self._age += 1
        if self._held:
            return self._watch(sample)
        limit, reason = super().update(sample)
        due = self._age >= self._due * limit or self._is_stuck(reason)
        return self._begin(sample) if due and reason not in (OLD, DROPPED) else (limit, reason)

    def _is_stuck(self, reason: str) -> bool:
        """Tell whether a probe is due before its time."""
        return False

    def _rest(self) -> None:
        self._age: int = 0
        self._due: float = 30 * self._rng.uniform(0.5, 1)

    def _begin(self, sample: Sample) -> tuple[float, str]:
        self._held = self.limit
        return self._step(sample, self._room(), PROBING)

    def _watch(self, sample: Sample) -> tuple[float, str]:
        if sample.dropped:
            return self._drop_held(sample)
        self._epoch.take(sample)
        if self._round.is_over(sample):
            self._round.add(sample)
        if self._round.count < PROBES:
            return self.limit, PROBING
        self._measured(self._round)
        held, self._held = self._held, 0.0
        self._rest()
        return self._step(sample, held, PROBED)

    def _drop_held(self, sample: Sample) -> tuple[float, str]:
        if not self._epoch.is_over(sample):
            return self.limit, OLD
        self._held = self._rule.clamp(self._held * self._rule.shrink)
        self._epoch.lower(end_of(sample))
        self.limit: float = min(self.limit, self._held)
        return self.limit, DROPPED
