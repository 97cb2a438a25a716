"""The queue's side of gates: which lane of the schedule is shut, and when the alarm asks again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import trio

from trio_orchestrator.algorithms.schedule import Schedule
from trio_orchestrator.block import emit
from trio_orchestrator.event import GateOpened
from trio_orchestrator.queue.alarm import Alarm, Timer
from trio_orchestrator.queue.gates import Gate
from trio_orchestrator.queue.handle import JobHandle


@final
class _Seat:
    """What the queue knows of one gate."""

    __slots__ = ("jobs", "probe", "shut", "timer")

    def __init__(self) -> None:
        self.jobs = 0
        self.probe: JobHandle[Any] | None = None  # the job that went first
        self.shut = False
        self.timer: Timer | None = None


@final
class Lanes:
    """Keeps a lane of the schedule shut while its gate is. The queue's own gate has the default lane, None."""

    __slots__ = ("_alarm", "_closed", "_hooks", "_own", "_schedule", "_seats", "_tell")

    def __init__(
        self,
        own: Gate,
        schedule: Schedule[JobHandle[Any]],
        alarm: Alarm,
        tell: Callable[[bool], None],
        hooks: list[Callable[[Any], None]],
    ) -> None:
        self._own = own
        self._schedule = schedule
        self._alarm = alarm
        self._tell = tell  # whether a gate that changed is shut now
        self._hooks = hooks
        self._seats: dict[Gate, _Seat] = {}
        self._closed = False
        self.enter(own)

    @property
    def open(self) -> bool:
        """Whether no gate has anything to say: the condition of the fast path."""
        return len(self._seats) == 1 and self._own.is_open and self._seats[self._own].probe is None

    @property
    def shut_for(self) -> float:
        """Seconds until the queue's own gate lets the next job through; 0 if it does now, inf if not known."""
        now = trio.current_time()
        return max(0.0, self._own.opens_at(now) - now)

    def shut_gate(self) -> str | None:
        """Say which gate holds jobs back, and for how long; None if all are open."""
        now = trio.current_time()
        for gate in reversed(self._seats):  # the queue's own is the first, and may have no jobs
            if gate.opens_at(now) > now:
                whose = "its gate" if gate is self._own else f"gate {gate.name!r}"
                return f"{whose} is shut for {gate.opens_at(now) - now:.3g} s"
        return None

    def enter(self, gate: Gate) -> None:
        """A job of this gate was submitted."""
        seat = self._seats.get(gate)
        if seat is None:
            seat = self._seats[gate] = _Seat()
            gate.listen(self._changed)
            self._refresh(gate, seat)
        seat.jobs += 1

    def leave(self, gate: Gate) -> None:
        """A job of this gate has ended."""
        seat = self._seats[gate]
        seat.jobs -= 1
        if not seat.jobs and not self._closed:
            self._disarm(seat)
            gate.forget(self._changed)
            del self._seats[gate]
            self._schedule.forget(gate)

    def close(self) -> None:
        """Stop listening, for ever. Bodies may still clean up; one that has gone first still tells its gate."""
        self._closed = True
        for gate, seat in self._seats.items():
            self._disarm(seat)
            gate.forget(self._changed)

    def passed(self, job: JobHandle[Any], gate: Gate, limit: float) -> None:
        """A job was taken out of its lane."""
        if gate.is_open:
            return
        seat = self._seats[gate]
        if gate.probing:
            seat.probe = job
        gate.passed(limit, trio.current_time())
        self._refresh(gate, seat)

    def answered(self, job: JobHandle[Any], gate: Gate, *, success: bool | None) -> None:
        """An attempt ended: if the job went first, its outcome counts. None: it was cancelled."""
        seat = self._seats[gate]
        if seat.probe is job:
            seat.probe = None
            gate.answered(success=success)
        elif success:
            gate.encouraged()

    def refused(self, job: JobHandle[Any], gate: Gate, retry_after: float) -> float:
        """The policy around an attempt refused it. Return for how long the gate is shut now."""
        seat = self._seats[gate]
        first = seat.probe is job
        if first:
            seat.probe = None
        return gate.refused(retry_after, first=first)

    def _changed(self, gate: Gate) -> None:
        seat = self._seats[gate]
        self._refresh(gate, seat)
        self._tell(seat.shut)

    def _refresh(self, gate: Gate, seat: _Seat) -> None:
        now = trio.current_time()
        opens_at = gate.opens_at(now)
        lane = None if gate is self._own else gate
        self._disarm(seat)
        if opens_at > now:
            seat.shut = True
            self._schedule.shut(lane)
            if opens_at < float("inf"):
                seat.timer = self._alarm.call_at(opens_at, lambda: self._changed(gate), last=True)
        else:
            self._schedule.open(lane)
            was_shut, seat.shut = seat.shut, False  # before the hooks, which may shut it again
            if was_shut and self._hooks:
                emit(self._hooks, GateOpened(probing=gate.probing))

    def _disarm(self, seat: _Seat) -> None:
        if seat.timer is not None:
            self._alarm.cancel(seat.timer)
            seat.timer = None
