"""A small model of rate limits with lines: a token bucket, a list of starts, and whoever is due first."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Protocol


class Rule(Protocol):
    most: float

    def due(self, now: float, cost: float) -> float: ...

    def take(self, now: float, cost: float) -> None: ...


@dataclass
class Bucket:
    """Refills evenly up to `most`; the same as GCRA, told the other way round."""

    limit: float
    per: float
    most: float
    tokens: float = math.nan
    stamp: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.most

    def level(self, now: float) -> float:
        return min(self.most, self.tokens + (now - self.stamp) * self.limit / self.per)

    def due(self, now: float, cost: float) -> float:
        return now + max(0.0, cost - self.level(now)) * self.per / self.limit

    def take(self, now: float, cost: float) -> None:
        self.tokens, self.stamp = self.level(now) - cost, now

    def change(self, now: float, limit: float, most: float) -> None:
        taken = min(self.most - self.level(now), most)
        self.limit, self.most, self.tokens, self.stamp = limit, most, most - taken, now


@dataclass
class Window:
    """Every start there ever was."""

    most: float
    per: float
    starts: list[tuple[float, float]] = field(default_factory=list)

    def weight(self, now: float) -> float:
        return sum(cost for at, cost in self.starts if now - self.per < at <= now)

    def due(self, now: float, cost: float) -> float:
        times = [now, *sorted(at + self.per for at, _ in self.starts if at + self.per > now)]
        return next(time for time in times if self.weight(time) + cost <= self.most)

    def take(self, now: float, cost: float) -> None:
        self.starts.append((now, cost))

    def change(self, now: float, limit: float, most: float) -> None:
        self.most = limit


@dataclass
class Server:
    most: float = math.inf
    held_until: float = 0.0
    left: float = math.inf
    reset_at: float = 0.0

    def due(self, now: float, cost: float) -> float:
        short = self.reset_at if now < self.reset_at and cost > self.left else now
        return max(now, self.held_until, short)

    def take(self, now: float, cost: float) -> None:
        if now < self.reset_at:
            self.left -= cost


@dataclass
class Limit:
    rule: Bucket | Window
    max_waiting: float = math.inf
    max_wait: float = math.inf
    server: Server = field(default_factory=Server)
    granted: int = 0
    refused: int = 0
    cancelled: int = 0


@dataclass
class Waiter:
    number: int
    joined: float
    costs: dict[int, float]  # by limit


class Model:
    """Several limits, and who waits for one or more of them, in order of arrival."""

    def __init__(self, *limits: Limit) -> None:
        self.limits = limits
        self.now = 0.0
        self.line: list[Waiter] = []
        self.granted: dict[int, float] = {}
        self.refused: dict[int, float] = {}

    def waiting(self, limit: int) -> int:
        return sum(limit in waiter.costs for waiter in self.line)

    def due(self, costs: dict[int, float]) -> float:
        times = [self.limits[key].rule.due(self.now, cost) for key, cost in costs.items()]
        times += [self.limits[key].server.due(self.now, cost) for key, cost in costs.items()]
        return max(times)

    def first(self) -> list[Waiter]:
        """Those who are the first in all of their lines."""
        seen: set[int] = set()
        found: list[Waiter] = []
        for waiter in self.line:
            if not seen & waiter.costs.keys():
                found.append(waiter)
            seen |= waiter.costs.keys()
        return found

    def advance(self, to: float) -> None:
        while self.line:
            at, waiter = min(((self.due(each.costs), each) for each in self.first()), key=lambda pair: pair[0])
            if at > to:
                break
            self.now = at
            self.line.remove(waiter)
            self.grant(waiter.number, waiter.costs)
        self.now = max(to, self.now)

    def grant(self, number: int, costs: dict[int, float]) -> None:
        self.granted[number] = self.now
        for key, cost in costs.items():
            limit = self.limits[key]
            limit.granted += 1
            limit.rule.take(self.now, cost)
            limit.server.take(self.now, cost)

    def foresee(self, number: int, costs: dict[int, float]) -> float:
        """When it would be let in if it joined now."""
        ahead = copy.deepcopy(self)
        ahead.line.append(Waiter(number, self.now, costs))
        while number not in ahead.granted:
            ahead.advance(min(ahead.due(each.costs) for each in ahead.first()))
        return ahead.granted[number]

    def ask(self, number: int, costs: dict[int, float], *, wait: bool) -> None:
        busy = any(self.waiting(key) for key in costs)
        if not busy and self.due(costs) <= self.now:
            self.grant(number, costs)
            return
        at = self.foresee(number, costs)
        limits = [self.limits[key] for key in costs]
        full = any(self.waiting(key) >= self.limits[key].max_waiting for key in costs)
        if not wait or full or at > self.now + min(limit.max_wait for limit in limits):
            self.refuse(number, costs, at)
        else:
            self.line.append(Waiter(number, self.now, costs))

    def refuse(self, number: int, costs: dict[int, float], at: float) -> None:
        self.refused[number] = at - self.now
        for key in costs:
            self.limits[key].refused += 1

    def cancel(self, number: int) -> None:
        for waiter in [waiter for waiter in self.line if waiter.number == number]:
            self.line.remove(waiter)
            for key in waiter.costs:
                self.limits[key].cancelled += 1
        self.advance(self.now)

    def changed(self) -> None:
        """The rules have changed: whoever would now wait too long is refused, the first ones first."""
        stay: list[Waiter] = []
        everybody, self.line = self.line, []
        for waiter in everybody:
            self.line = list(stay)
            limits = [self.limits[key] for key in waiter.costs]
            if any(cost > self.limits[key].rule.most for key, cost in waiter.costs.items()):
                self.refuse(waiter.number, waiter.costs, math.inf)
            elif (at := self.foresee(waiter.number, waiter.costs)) > waiter.joined + min(
                limit.max_wait for limit in limits
            ):
                self.refuse(waiter.number, waiter.costs, at)
            else:
                stay.append(waiter)
        self.line = stay
        self.advance(self.now)
