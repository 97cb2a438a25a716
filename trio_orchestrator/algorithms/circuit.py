"""The state machine of a circuit breaker: who is let in, and what the end of a call means. Time is an argument.

Each change of state begins a new *epoch*, and a call belongs to the epoch in which it was let in: what an older one
comes to changes nothing but totals. So a slow call from before an outage neither closes nor opens anything.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple, final

from trio_orchestrator.abc import Backoff, RandomSource
from trio_orchestrator.algorithms.trip import Tally, Trip


@final
class CircuitState(enum.Enum):
    """What a circuit breaker does with the next call."""

    CLOSED = "closed"
    """It lets it through."""
    OPEN = "open"
    """It refuses it, until its cooldown is over."""
    HALF_OPEN = "half-open"
    """It lets a few through, as probes."""
    ISOLATED = "isolated"
    """An operator holds it open."""


CLOSED, OPEN, HALF_OPEN, ISOLATED = CircuitState

_LONGEST_LEASE = 300.0
"""Seconds to which a lease grows by itself: so often at least somebody else may probe."""
_RAMP_PAUSE = 1.0
"""Seconds within which one who is refused during a ramp may come again; the share that passes has grown by then."""


@final
class Refusal(NamedTuple):
    """A call is not let in."""

    state: CircuitState
    retry_after: float


@final
class Permit:
    """A call was let in. It ends once, by `Circuit.settle`; `Circuit.give_back` may come before."""

    __slots__ = ("epoch", "lease_ends_at", "replaced", "started_at")

    def __init__(self, epoch: int, started_at: float, lease_ends_at: float = math.inf) -> None:
        self.epoch: int = epoch
        self.started_at: float = started_at
        self.lease_ends_at: float = lease_ends_at
        self.replaced: bool = False
        """Whether its lease ran out, and another probe took its place."""


@final
class Rules(NamedTuple):
    """What a circuit goes by; see `CircuitBreaker`."""

    trip: Trip
    cooldown: float | Backoff
    probes: int
    probe_lease: float | None
    needed: int
    """So many successful probes close it."""
    tolerated: int
    """More failed probes than these open it again."""
    ramp: float
    rng: RandomSource


@final
class Circuit:
    """The state of one breaker. Every method is one step; after each, `mode` may have changed."""

    __slots__ = (
        "_failed_probes",
        "_good_probes",
        "_lease",
        "_ramp_credit",
        "_rules",
        "_since",
        "_until",
        "admitted",
        "cooldown",
        "epoch",
        "failures",
        "first_opened_at",
        "holds",
        "late",
        "mode",
        "neutral",
        "opened_at",
        "openings",
        "out",
        "plain",
        "refused",
        "successes",
        "tally",
    )

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.epoch: int = 0
        self.mode: CircuitState = CLOSED
        """CLOSED, OPEN or HALF_OPEN; isolation lies over it."""
        self.holds: int = 0
        self.tally: Tally = rules.trip.tally()
        self.plain: bool = True
        """Closed, with nothing else to ask: neither isolated nor in a ramp."""
        self.openings: int = 0
        self.cooldown: float = 0.0
        self.first_opened_at: float = -math.inf
        self.opened_at: float = -math.inf
        self._since = -math.inf  # when the cooldown, or the ramp after closing, began
        self._until = -math.inf  # when it is over
        self._ramp_credit = 0.0
        self._lease = math.inf
        self.out: dict[Permit, None] = {}
        """The probes that are out, the oldest first."""
        self._good_probes = self._failed_probes = 0
        self.admitted: int = 0
        self.refused: int = 0
        self.successes: int = 0
        self.failures: int = 0
        self.neutral: int = 0
        self.late: int = 0

    # ------------------------------------------------------------------------------------------------- reading

    def state(self, now: float) -> CircuitState:
        """Return what it would do with a call at `now`."""
        if self.holds:
            return ISOLATED
        if self.mode is OPEN and now >= self._due(now):
            return HALF_OPEN
        return self.mode

    def opens_in(self, now: float) -> float:
        """Return the seconds until it may let a probe through; 0 if it is not open."""
        return max(0.0, self._due(now) - now) if self.mode is OPEN else 0.0

    def _due(self, now: float) -> float:
        """Return when the cooldown is over: by now, if the clock of another run began it."""
        return self._until if now >= self._since else now

    def is_idle(self, now: float) -> bool:
        """Tell whether it differs in nothing from a new one, and no call is in it."""
        self._leave_ramp(now)
        return self.plain and not self.in_flight and self.tally.is_empty(now)

    @property
    def in_flight(self) -> int:
        """How many calls are in it."""
        return self.admitted - self.successes - self.failures - self.neutral - self.late

    # ------------------------------------------------------------------------------------------------ a call

    def admit(self, now: float) -> Permit | Refusal:
        """Let a call in, or not. An open circuit whose time is over becomes half-open by that."""
        answer = self._admit(now)
        if isinstance(answer, Permit):
            self.admitted += 1
        else:
            self.refused += 1
        return answer

    def _admit(self, now: float) -> Permit | Refusal:
        if self.holds:
            return Refusal(ISOLATED, math.inf)
        if self.mode is CLOSED:
            return self._admit_closed(now)
        if self.mode is OPEN:
            if now < (due := self._due(now)):
                return Refusal(OPEN, due - now)
            self._turn(HALF_OPEN)
        return self._admit_probe(now)

    def _admit_closed(self, now: float) -> Permit | Refusal:
        if not self.plain and not self._leave_ramp(now):
            share = 1 - (self._until - now) / self._rules.ramp
            self._ramp_credit += share
            if self._ramp_credit < 1:
                return Refusal(CLOSED, self._rules.rng.uniform(0, min(self._until - now, _RAMP_PAUSE)))
            self._ramp_credit -= 1
        return Permit(self.epoch, now)

    def _leave_ramp(self, now: float) -> bool:
        """Become plain again if a ramp was all that stood against it, and is over, or of another run."""
        if self.mode is CLOSED and not self.holds and not self._since <= now < self._until:
            self.plain = True
        return self.plain

    def _admit_probe(self, now: float) -> Permit | Refusal:
        if len(self.out) >= self._rules.probes:
            oldest = next(iter(self.out))
            if now < oldest.lease_ends_at or now == oldest.started_at:  # a cooldown, and so a lease, may be drawn as 0
                return Refusal(HALF_OPEN, math.inf)
            oldest.replaced = True
            del self.out[oldest]
            self._lengthen_lease()
        permit = Permit(self.epoch, now, now + self._lease)
        self.out[permit] = None
        return permit

    def _lengthen_lease(self) -> None:
        """Double a lease that was not named: where calls take longer, each probe would be replaced, for ever."""
        if self._rules.probe_lease is None:
            self._lease = max(self._lease, min(max(1.0, 2 * self._lease), _LONGEST_LEASE))

    def give_back(self, permit: Permit) -> None:
        """Let another probe in the place of a call that has ended, while its verdict is still to come."""
        self.out.pop(permit, None)

    def settle(self, permit: Permit, now: float, failed: bool | None, slow: bool) -> None:
        """End a call. `failed` is None for a neutral end."""
        self.give_back(permit)
        if failed is None:
            self.neutral += 1
        elif permit.epoch != self.epoch or permit.replaced:
            self.late += 1
        elif self.mode is CLOSED:
            self._count(failed)
            if self.tally.record(now, failed, slow):
                self.open(now)
        else:
            self._count(failed)
            self._probed(now, failed or slow)

    def _count(self, failed: bool) -> None:
        if failed:
            self.failures += 1
        else:
            self.successes += 1

    def _probed(self, now: float, failed: bool) -> None:
        if failed:
            self._failed_probes += 1
            if self._failed_probes > self._rules.tolerated:
                self.open(now)
        else:
            self._good_probes += 1
            if self._good_probes >= self._rules.needed:
                self.close(now, ramp=self._rules.ramp)

    # ----------------------------------------------------------------------------------------------- changes

    def open(self, now: float, *, seconds: float | None = None, openings: int | None = None) -> None:
        """Refuse calls for the cooldown, as one opening more; or for the rest of one, which was that many."""
        number = self.openings + 1 if openings is None else openings
        cooldown = self._cooldown(number)
        if self.openings == 0:
            self.first_opened_at = now
        self.openings = number
        self.opened_at = self._since = now
        self.cooldown = cooldown if seconds is None else seconds
        self._lease = cooldown if self._rules.probe_lease is None else self._rules.probe_lease
        self._until = now + self.cooldown
        self._turn(OPEN)

    def _cooldown(self, opening: int) -> float:
        cooldown = self._rules.cooldown
        return cooldown(opening, self._rules.rng) if isinstance(cooldown, Backoff) else cooldown

    def close(self, now: float, *, ramp: float = 0.0) -> None:
        """Let calls through, a growing part of them for `ramp` seconds."""
        self.openings = 0
        self.tally = self._rules.trip.tally()
        self._since, self._until = now, now + ramp
        self._ramp_credit = 1.0  # the first one passes
        self._turn(CLOSED)
        self.plain = not self.holds and not ramp

    def isolate(self) -> None:
        """Hold it open; holds are counted. What is in it now belongs to an older epoch."""
        self.holds += 1
        if self.holds == 1:
            self._turn(self.mode)

    def release(self) -> None:
        """End one hold. With the last one it does what it did before, in a new epoch."""
        self.holds -= 1
        if not self.holds:
            self._turn(self.mode)

    def _turn(self, mode: CircuitState) -> None:
        self.epoch += 1
        self.mode = mode
        self.plain = False
        self.out.clear()
        self._good_probes = self._failed_probes = 0
