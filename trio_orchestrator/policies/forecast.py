"""Looking ahead: when will those who wait before a rate limit be let in, and when one who comes now?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from trio_orchestrator.policies.line import Line, Waiter


@final
class Forecast:
    """When those who wait will be let in, if nothing else happens: the rules' own arithmetic, on copies."""

    __slots__ = ("_ahead", "valid")

    def __init__(self, lines: Iterable[Line], now: float) -> None:
        self._ahead = {line: (max(line.floor, now), [rule.copy() for rule in line.rules()]) for line in lines}
        self.valid: bool = True

    def covers(self, lines: Iterable[Line]) -> bool:
        """Return whether it can tell about these lines."""
        return self.valid and all(line in self._ahead for line in lines)

    def place(self, lines: Sequence[Line], costs: Sequence[float], joined: float) -> tuple[float, str]:
        """Return when one who comes last would be let in, and the name of the limit that says so."""
        latest, name = joined, lines[0].name
        for line, cost in zip(lines, costs, strict=True):
            floor, rules = self._ahead[line]
            now = max(floor, joined)
            at = math.inf if cost > line.rule.capacity else max(now, *(rule.earliest(now, cost) for rule in rules))
            if at > latest:
                latest, name = at, line.name
        return latest, name

    def book(self, at: float, lines: Sequence[Line], costs: Sequence[float]) -> None:
        """Reckon with one more who is let in then."""
        for line, cost in zip(lines, costs, strict=True):
            _, rules = self._ahead[line]
            for rule in rules:
                rule.take(at, at, cost)
            self._ahead[line] = (at, rules)


def foresee(lines: Sequence[Line], now: float) -> Forecast:
    """Return a forecast for these lines, in which all waiters are booked: a kept one, or a new one in O(waiters)."""
    kept = lines[0].forecast
    if kept is not None and kept.covers(lines):
        return kept
    related = related_to(lines)
    forecast = Forecast(related, now)
    for waiter in in_order(related):
        at, _ = forecast.place(waiter.lines, waiter.costs, waiter.joined)
        forecast.book(at, waiter.lines, waiter.costs)
    if all(line.waiters for line in related):  # where nobody waits, a call may be let in without a word to anybody
        for line in related:
            if line.forecast is not None:
                line.forecast.valid = False
            line.forecast = forecast
    return forecast


def related_to(lines: Iterable[Line]) -> list[Line]:
    """Return the lines, and those in which their waiters stand as well, and so on."""
    found = dict.fromkeys(lines)
    todo = list(found)
    while todo:
        line = todo.pop()
        for waiter in line.waiters if line.shared else ():
            new = [line for line in waiter.lines if line not in found]
            found.update(dict.fromkeys(new))
            todo += new
    return list(found)


def in_order(lines: Sequence[Line]) -> list[Waiter]:
    """Return the waiters of related lines in an order that is that of every line."""
    queues = {line: list(reversed(line.waiters)) for line in lines}
    ordered: list[Waiter] = []
    todo = list(lines)
    while todo:
        queue = queues[todo.pop()]
        while queue and all(queues[line][-1] is queue[-1] for line in queue[-1].lines):
            waiter = queue[-1]
            ordered.append(waiter)
            for line in waiter.lines:
                queues[line].pop()
            if len(waiter.lines) > 1:
                todo += waiter.lines
    return ordered
