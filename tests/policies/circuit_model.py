"""A small model of a circuit breaker, which looks at all of history every time; and what its test puts on stage."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from hypothesis import strategies as st

from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.circuit import CircuitState
from trio_orchestrator.algorithms.trip import AnyOf, Consecutive, Ratio, SlowRatio, Trip
from trio_orchestrator.errors import CircuitOpenError, RejectedError
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policy_event import CircuitClosed, CircuitHalfOpened, CircuitIsolated, CircuitOpened
from trio_orchestrator.testing import Call

CLOSED, OPEN, HALF_OPEN, ISOLATED = CircuitState


@final
@dataclass(frozen=True)
class TripModel:
    """One of the rules, as data: `calls` or `seconds` or neither."""

    kind: str
    ratio: float = 0.5
    calls: int | None = None
    seconds: float | None = None
    minimum: int = 1
    row: int = 3

    def rule(self) -> Trip:
        if self.kind == "row":
            return Consecutive(self.row)
        kind = SlowRatio if self.kind == "slow" else Ratio
        rule = kind(self.ratio, calls=self.calls, seconds=self.seconds, minimum=self.minimum)
        return AnyOf(rule, Consecutive(self.row)) if self.kind == "either" else rule

    def opens(self, now: float, history: list[tuple[float, bool, bool]]) -> bool:
        in_a_row = len(history) >= self.row and all(failed for _, failed, _ in history[-self.row :])
        if self.kind == "row":
            return in_a_row
        latest = self.latest(now, history)
        bad = sum(slow if self.kind == "slow" else failed for _, failed, slow in latest)
        return (len(latest) >= self.minimum and bad / len(latest) >= self.ratio) or (self.kind == "either" and in_a_row)

    def latest(self, now: float, history: list[tuple[float, bool, bool]]) -> list[tuple[float, bool, bool]]:
        if self.calls is not None:
            return history[-self.calls :]
        assert self.seconds is not None
        bucket = self.seconds / 10
        return [call for call in history if now // bucket - call[0] // bucket < 10]

    def is_empty(self, now: float, history: list[tuple[float, bool, bool]]) -> bool:
        trailing = bool(history) and history[-1][1]
        if self.kind == "row":
            return not trailing
        return not self.latest(now, history) and not (self.kind == "either" and trailing)


@final
@dataclass
class CallModel:
    """A call that was let in."""

    epoch: int
    started: float
    lease_ends: float = math.inf
    holds_a_place: bool = False
    replaced: bool = False
    ended: bool = False


@final
@dataclass
class CircuitModel:
    """What the breaker ought to do."""

    trip: TripModel
    cooldowns: tuple[float, ...]
    probes: int
    probe_lease: float | None
    needed: int
    tolerated: int
    slow_call: float
    ramp: float
    nosy: bool
    """Whether a hook makes a call when the circuit has opened or closed."""
    now: float = 0.0
    mode: CircuitState = CLOSED
    epoch: int = 0
    holds: int = 0
    openings: int = 0
    opened_at: float = -math.inf
    first_opened_at: float = -math.inf
    opens_at: float = -math.inf
    lease: float = math.inf
    ramp_ends: float = -math.inf
    credit: float = 0.0
    calls: list[CallModel] = field(default_factory=list[CallModel])
    history: list[tuple[float, bool, bool]] = field(default_factory=list[tuple[float, bool, bool]])
    good: int = 0
    bad: int = 0
    refused: int = 0
    successes: int = 0
    failures: int = 0
    neutral: int = 0
    late: int = 0
    events: list[object] = field(default_factory=list[object])
    published: list[CircuitState] = field(default_factory=list[CircuitState])

    # ------------------------------------------------------------------------------------------------- reading

    @property
    def state(self) -> CircuitState:
        if self.holds:
            return ISOLATED
        return HALF_OPEN if self.mode is OPEN and self.now >= self.opens_at else self.mode

    @property
    def in_flight(self) -> int:
        return sum(not call.ended for call in self.calls)

    @property
    def out(self) -> list[CallModel]:
        """The probes that hold a place, the oldest first."""
        return [call for call in self.calls if call.holds_a_place and call.epoch == self.epoch]

    @property
    def is_idle(self) -> bool:
        quiet = self.mode is CLOSED and not self.holds and self.now >= self.ramp_ends and not self.in_flight
        return quiet and self.trip.is_empty(self.now, self.history)

    def statistics(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "admitted": len(self.calls),
            "refused": self.refused,
            "successes": self.successes,
            "failures": self.failures,
            "neutral": self.neutral,
            "late": self.late,
            "in_flight": self.in_flight,
            "probes": len(self.out),
            "openings": self.openings,
            "opens_in": max(0.0, self.opens_at - self.now) if self.mode is OPEN else 0.0,
        }

    # -------------------------------------------------------------------------------------------------- calls

    def admit(self) -> CallModel | tuple[str, float, float]:
        """Return the call; or why it is refused, and the least and the most that `retry_after` may be."""
        if self.state is HALF_OPEN and self.mode is OPEN:
            self.turn(HALF_OPEN)
            self.events.append(CircuitHalfOpened("c", self.now - self.opened_at))
        refusal = self.why_not()
        if refusal is not None:
            self.refused += 1
            return refusal
        call = CallModel(self.epoch, self.now)
        if self.mode is HALF_OPEN:
            call.lease_ends, call.holds_a_place = self.now + self.lease, True
        self.calls.append(call)
        return call

    def why_not(self) -> tuple[str, float, float] | None:
        if self.holds:
            return "isolated", math.inf, math.inf
        if self.mode is OPEN:
            return "open", self.opens_at - self.now, self.opens_at - self.now
        if self.mode is HALF_OPEN:
            return self.no_place()
        return self.ramp_refuses()

    def no_place(self) -> tuple[str, float, float] | None:
        if len(self.out) < self.probes:
            return None
        oldest = self.out[0]
        if oldest.lease_ends > self.now:
            return "half-open", math.inf, math.inf
        oldest.holds_a_place, oldest.replaced = False, True
        if self.probe_lease is None and self.lease < 300:
            self.lease = min(300, max(1, 2 * self.lease))
        return None

    def ramp_refuses(self) -> tuple[str, float, float] | None:
        rest = self.ramp_ends - self.now
        if rest <= 0:
            return None
        self.credit += 1 - rest / self.ramp
        if self.credit < 1:
            return "closed", 0.0, min(1.0, rest)
        self.credit -= 1
        return None

    def leave(self, call: CallModel) -> None:
        """The block of the call was left; its verdict may still be open."""
        call.holds_a_place = False

    def end(self, call: CallModel, failed: bool | None, *, error: BaseException | None = None) -> None:
        assert not call.ended
        self.leave(call)
        call.ended = True
        slow = self.now - call.started > self.slow_call
        if failed is None:
            self.neutral += 1
        elif call.epoch != self.epoch or call.replaced:
            self.late += 1
        else:
            self.failures += failed
            self.successes += not failed
            cause = error if failed else None
            if self.mode is CLOSED:
                self.history.append((self.now, failed, slow))
                if self.trip.opens(self.now, self.history):
                    self.open(cause)
            else:
                self.probed(failed or slow, cause)

    def probed(self, failed: bool, cause: BaseException | None) -> None:
        self.bad += failed
        self.good += not failed
        if self.bad > self.tolerated:
            self.open(cause)
        elif self.good >= self.needed:
            self.close(reset=False)

    # ------------------------------------------------------------------------------------------------ changes

    def turn(self, mode: CircuitState) -> None:
        self.epoch += 1
        self.mode = mode
        self.good = self.bad = 0
        if not self.holds:
            self.published.append(mode)

    def open(self, cause: BaseException | None, *, seconds: float | None = None, openings: int | None = None) -> None:
        if self.openings == 0:
            self.first_opened_at = self.now
        self.openings = self.openings + 1 if openings is None else openings
        cooldown = self.cooldowns[min(self.openings, len(self.cooldowns)) - 1]
        self.lease = cooldown if self.probe_lease is None else self.probe_lease
        wait = cooldown if seconds is None else seconds
        self.opened_at, self.opens_at = self.now, self.now + wait
        self.turn(OPEN)
        self.events.append(CircuitOpened("c", wait, self.openings, cause))
        self.let_the_hook_call()

    def close(self, *, reset: bool) -> None:
        changed = self.mode is not CLOSED
        self.history.clear()
        self.openings = 0
        self.ramp_ends, self.credit = (self.now, 0.0) if reset else (self.now + self.ramp, 1.0)
        if changed:
            self.turn(CLOSED)
            self.events.append(CircuitClosed("c", self.now - self.first_opened_at, reset))
            self.let_the_hook_call()
        else:
            self.epoch += 1

    def let_the_hook_call(self) -> None:
        if self.nosy:
            call = self.admit()
            if isinstance(call, CallModel):
                self.end(call, False)

    def restore_open(self, seconds: float, openings: int) -> None:
        self.open(None, seconds=seconds, openings=openings)

    def hold(self, step: int) -> None:
        before, self.holds = self.holds, self.holds + step
        if bool(before) is not bool(self.holds):
            self.epoch += 1
            self.good = self.bad = 0
            self.published.append(ISOLATED if self.holds else self.mode)
            self.events.append(CircuitIsolated("c", self.holds > 0, self.holds))


# ------------------------------------------------------------------------------------------------- the stage


TRIPS = st.one_of(
    st.builds(TripModel, st.just("row"), row=st.integers(1, 3)),
    st.builds(
        TripModel,
        st.sampled_from(["ratio", "slow", "either"]),
        ratio=st.sampled_from([0.25, 0.5, 0.75, 1.0]),
        calls=st.integers(3, 6),
        minimum=st.integers(1, 3),
        row=st.integers(2, 4),
    ),
    st.builds(
        TripModel,
        st.sampled_from(["ratio", "slow", "either"]),
        ratio=st.sampled_from([0.25, 0.5, 0.75, 1.0]),
        seconds=st.sampled_from([10.0, 40.0]),
        minimum=st.integers(1, 4),
        row=st.integers(2, 4),
    ),
)

NEUTRAL = LookupError("says nothing")
OUTCOMES: dict[str, tuple[object, bool | None]] = {
    "fine": ("fine", False),
    "bad result": ("bad", True),
    "failure": (OSError("down"), True),
    "group of failures": (ExceptionGroup("all", [OSError("a"), ExceptionGroup("b", [OSError("c")])]), True),
    "group with a failure": (ExceptionGroup("some", [OSError("a"), RejectedError(), NEUTRAL]), True),
    "answer": (ValueError("404"), False),
    "group with an answer": (ExceptionGroup("some", [ValueError("404"), NEUTRAL]), False),
    "neutral": (NEUTRAL, None),
    "refused inside": (RejectedError(), None),
    "group of neutrals": (ExceptionGroup("all", [NEUTRAL, RejectedError()]), None),
    "fatal": (BaseExceptionGroup("b", [KeyboardInterrupt(), OSError()]), None),
}


@final
@dataclass
class Running:
    """A call that was let in, and how it can still end."""

    model: CallModel
    call: Call[None]
    end: Callable[[object], None]
    kind: str
    ends_at: float = math.inf
    verdict_at: float = math.inf
    failed: bool | None = None


@final
@dataclass
class Nosy(Instrument):
    """A listener that calls the breaker which it listens to."""

    breaker: CircuitBreaker | None = None
    seen: list[CircuitState] = field(default_factory=list[CircuitState])

    def circuit_opened(self, event: CircuitOpened, /) -> None:
        self.look()

    def circuit_closed(self, event: CircuitClosed, /) -> None:
        self.look()

    def look(self) -> None:
        assert self.breaker is not None
        self.seen.append(self.breaker.state)
        assert self.breaker.statistics().state is self.seen[-1]
        try:
            with self.breaker.guard():
                pass
        except CircuitOpenError:
            pass
