"""The line before a rate limit: first come, first served, and only the first has a timer.

A line knows no rule by name; it asks a small protocol (`Rule`), so that a decision may come from elsewhere. A waiter
may stand in several lines at once: it is let in when it is the first in all of them and all of their rules allow it,
so that nothing is ever taken in part. Since it joins all of them in one breath, any two waiters stand in the same
order wherever both do, and the one that came first overall is never held up by another.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol, final

import trio
from trio.lowlevel import Abort, checkpoint, current_task, reschedule, wait_task_rescheduled

from trio_orchestrator.algorithms.allowance import Allowance
from trio_orchestrator.errors import RateLimitedError
from trio_orchestrator.policies.forecast import Forecast, foresee, in_order, related_to


class Rule(Protocol):
    """What a line asks of a rule: when is it allowed, take it, give it back."""

    @property
    def capacity(self) -> float:
        """The most that can be taken at once."""
        ...

    @property
    def lateness(self) -> float:
        """How late something may be taken, in seconds, without changing what is due after it."""
        ...

    def earliest(self, now: float, cost: float) -> float:
        """Return from when on `cost` may be taken: `now` or earlier if it may be taken now."""
        ...

    def take(self, at: float, now: float, cost: float) -> float:
        """Take `cost`, which was due at `at`, now; return the token that `refund` wants."""
        ...

    def refund(self, token: float, now: float, cost: float) -> None:
        """Give back what was taken and not used."""
        ...

    def copy(self) -> Rule:
        """Return a rule of its own in the same state, to look ahead with."""
        ...

    def is_idle(self, now: float) -> bool:
        """Return whether the state is as good as that of a new one."""
        ...

    def remaining(self, now: float) -> float:
        """Return how much may be taken at once now."""
        ...

    def reset_after(self, now: float) -> float:
        """Return the seconds until the state is as good as new."""
        ...


Tokens = tuple[tuple[float, ...], ...]
"""What was taken, by line and by rule, for a refund."""


@final
class Line:
    """The waiters before one limit, its rules and its counts."""

    __slots__ = (
        "allowance",
        "cancelled",
        "clear",
        "floor",
        "forecast",
        "granted",
        "max_wait",
        "max_waiting",
        "name",
        "refused",
        "rule",
        "shared",
        "waiters",
    )

    def __init__(self, rule: Rule, name: str, max_waiting: float, max_wait: float) -> None:
        self.rule: Rule = rule
        self.name: str = name
        self.max_waiting: float = max_waiting
        self.max_wait: float = max_wait
        self.allowance: Allowance | None = None
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.shared: int = 0  # of the waiters, those that stand in other lines as well
        self.clear: bool = True  # nobody waits and no server has spoken: the rule alone decides
        self.floor: float = -math.inf  # nothing that is let in from now on was due before
        self.forecast: Forecast | None = None
        self.granted: int = 0
        self.refused: int = 0
        self.cancelled: int = 0

    def first(self) -> Waiter | None:
        """Return the head of the line."""
        return next(iter(self.waiters), None)

    def told(self) -> Allowance:
        """Return what the server has told, to be added to."""
        if self.allowance is None:
            self.allowance = Allowance()
        self.clear = False
        return self.allowance

    def rules(self) -> tuple[Rule, ...]:
        """Return what must allow a call."""
        return (self.rule,) if self.allowance is None else (self.rule, self.allowance)

    def earliest(self, now: float, cost: float) -> float:
        """Return from when on the rules allow it, whoever waits."""
        at = max(self.floor, self.rule.earliest(now, cost))
        return at if self.allowance is None else self._told(self.allowance, at, now, cost)

    def _told(self, allowance: Allowance, at: float, now: float, cost: float) -> float:
        if not allowance.is_idle(now):
            return max(at, allowance.earliest(now, cost))
        self.allowance = None
        self.clear = not self.waiters
        if self.waiters:
            self.floor = max(self.floor, allowance.end)
        return max(at, self.floor)

    def take(self, at: float, now: float, cost: float) -> tuple[float, ...]:
        """Let one in."""
        self.granted += 1
        token = self.rule.take(at, now, cost)
        return (token,) if self.allowance is None else (token, self.allowance.take(at, now, cost))

    def take_now(self, now: float, cost: float) -> bool:
        """Let one in if nobody waits and the rules allow it; return whether it was."""
        if self.waiters or self.earliest(now, cost) > now:
            return False
        self.take(now, now, cost)
        return True

    def add(self, waiter: Waiter) -> None:
        """Put a waiter at the end of the line."""
        self.waiters[waiter] = None
        self.shared += len(waiter.lines) > 1
        self.clear = False

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out of the line."""
        del self.waiters[waiter]
        self.shared -= len(waiter.lines) > 1
        if not self.waiters:
            self.clear = self.allowance is None
            self.disturb(-math.inf)

    def disturb(self, now: float) -> None:
        """Note that what follows is due now at the earliest, and not as was foreseen."""
        self.floor = now if self.waiters else -math.inf
        if self.forecast is not None:
            self.forecast.valid = False


@final
class Waiter:
    """A task that waits in one or more lines. Woken, it has been let in, or refused."""

    __slots__ = ("costs", "joined", "lines", "refusal", "scope", "task")

    def __init__(self, lines: Sequence[Line], costs: Sequence[float], now: float) -> None:
        self.lines: Sequence[Line] = lines
        self.costs: Sequence[float] = costs
        self.joined: float = now
        self.task: trio.lowlevel.Task = current_task()
        self.scope: trio.CancelScope = trio.CancelScope()  # its deadline is a timer, which ends in `abort`
        self.refusal: RateLimitedError | None = None

    def is_first(self) -> bool:
        """Return whether it is the head of all its lines."""
        return all(line.first() is self for line in self.lines)

    def due(self, now: float) -> float:
        """Return from when on it may be let in; only the first in all its lines may ask."""
        return max(line.earliest(now, cost) for line, cost in zip(self.lines, self.costs, strict=True))

    def abort(self, raise_cancel: object) -> Abort:
        """Let it in if it is due, which is what its timer says; else it was cancelled and leaves."""
        now = trio.current_time()
        if self.is_first() and self.due(now) <= now:
            serve(self.lines, now)
            return Abort.FAILED  # it has been rescheduled
        self._leave(now)
        return Abort.SUCCEEDED

    def enter(self, at: float, now: float) -> None:
        """Let it in and wake it: the decision is made here, and not in its task."""
        for line, cost in zip(self.lines, self.costs, strict=True):
            line.take(at, now, cost)
            line.floor = at
            if now - at > line.rule.lateness:
                line.disturb(at)
            line.remove(self)
        reschedule(self.task)

    def refuse(self, at: float, name: str, now: float) -> None:
        """Send it away and wake it: it could not be let in before `at`."""
        for line in self.lines:
            line.refused += 1
            line.remove(self)
            line.disturb(now)
        self.refusal = RateLimitedError(name, retry_after=at - now)
        reschedule(self.task)

    def _leave(self, now: float) -> None:
        for line in self.lines:
            line.cancelled += 1
            line.remove(self)
            line.disturb(now)
        serve(self.lines, now)


def serve(lines: Iterable[Line], now: float) -> None:
    """Let in who is first and due, and set the timer of the next."""
    todo = list(lines)
    while todo:
        line = todo.pop()
        while (head := line.first()) is not None and head.is_first():
            if (at := head.due(now)) > now:
                head.scope.deadline = at
                break
            head.enter(at, now)
            todo += (other for other in head.lines if other is not line)


def take(lines: Sequence[Line], costs: Sequence[float], now: float) -> Tokens | None:
    """Take from all the limits now; None, and nothing is taken, if one of them does not allow it or has a line."""
    for line, cost in zip(lines, costs, strict=True):
        if line.waiters or line.earliest(now, cost) > now:
            return None
    return tuple([line.take(now, now, cost) for line, cost in zip(lines, costs, strict=True)])


def give_back(lines: Sequence[Line], costs: Sequence[float], tokens: Tokens) -> None:
    """Undo `take`, for a caller that was cancelled before it could use it."""
    now = trio.current_time()
    for line, cost, taken in zip(lines, costs, tokens, strict=True):
        line.granted -= 1
        line.cancelled += 1
        for rule, token in zip(line.rules(), taken, strict=False):
            rule.refund(token, now, cost)
        line.disturb(now)
    serve(lines, now)


async def settle(lines: Sequence[Line], costs: Sequence[float], tokens: Tokens) -> None:
    """Be a checkpoint; cancelled, give back what was taken."""
    try:
        await checkpoint()
    except BaseException:
        give_back(lines, costs, tokens)
        raise


async def wait(lines: Sequence[Line], costs: Sequence[float], now: float) -> None:
    """Wait in all the lines until let in: one sleep. Cancelled, those behind move up."""
    waiter = Waiter(lines, costs, now)
    for line in lines:
        line.add(waiter)
    _book(waiter)
    serve(lines, now)
    with waiter.scope:
        await wait_task_rescheduled(waiter.abort)
    if waiter.refusal is not None:
        try:
            raise waiter.refusal
        finally:
            del waiter  # no cycle through the traceback


def refusal(lines: Sequence[Line], costs: Sequence[float], now: float) -> RateLimitedError:
    """Count a refusal and return it, with the exact time until it would not be one."""
    if len(lines) == 1 and not lines[0].waiters:
        at, name = lines[0].earliest(now, costs[0]), lines[0].name
    else:
        at, name = foresee(lines, now).place(lines, costs, now)
    for line in lines:
        line.refused += 1
    return RateLimitedError(name, retry_after=at - now)


async def refuse(lines: Sequence[Line], costs: Sequence[float], now: float) -> NoReturn:
    """Count a refusal, be a checkpoint, and raise it."""
    error = refusal(lines, costs, now)
    try:
        await checkpoint()
        raise error
    finally:
        del error  # no cycle through the traceback


def may_wait(lines: Sequence[Line], costs: Sequence[float], now: float) -> bool:
    """Tell whether somebody who cannot be let in now may wait: no line is full, and the wait not too long."""
    if any(len(line.waiters) >= line.max_waiting for line in lines):
        return False
    patience = min(line.max_wait for line in lines)
    return patience == math.inf or foresee(lines, now).place(lines, costs, now)[0] <= now + patience


def retime(line: Line, now: float, *, shrunk: bool = False) -> None:
    """Look at the waiters again after the rules have changed: refuse who would wait too long, set the timer.

    Args:
        line: Whose rules have changed.
        now: The time.
        shrunk: Whether somebody may wait for more than can ever be taken.
    """
    line.disturb(now)
    related = related_to((line,))
    if shrunk or any(each.max_wait < math.inf for each in related):
        _send_away(related, now)
    serve(related, now)


def _send_away(related: Sequence[Line], now: float) -> None:
    forecast = Forecast(related, now)
    for waiter in in_order(related):
        at, name = forecast.place(waiter.lines, waiter.costs, waiter.joined)
        if at == math.inf or at > waiter.joined + min(line.max_wait for line in waiter.lines):
            waiter.refuse(at, name, now)
        else:
            forecast.book(at, waiter.lines, waiter.costs)


def _book(waiter: Waiter) -> None:
    """Reckon with one who has joined in the kept forecast, or drop that."""
    kept = waiter.lines[0].forecast
    if kept is not None and kept.covers(waiter.lines):
        at, _ = kept.place(waiter.lines, waiter.costs, waiter.joined)
        kept.book(at, waiter.lines, waiter.costs)
        return
    for line in waiter.lines:
        if line.forecast is not None:
            line.forecast.valid = False
