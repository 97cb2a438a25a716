"""Vector's scenarios for adaptive concurrency, driven through the real `AdaptiveLimiter` on the virtual clock.

`simulate(scenario, rule)` returns what was measured, ready to be asserted, printed or drawn; `SCENARIOS` are the twelve
of Vector, read from `arc_scenarios.json` with the ranges that Vector's own tests accept.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import trio

from tests.simulations.link import NO_LOAD, Levels, Link, Load
from trio_orchestrator.abc import Control, Instrument, Limit, RandomSource, Sample
from trio_orchestrator.algorithms.average import Spread
from trio_orchestrator.algorithms.backoff import FullJitter
from trio_orchestrator.event import LimitChanged
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import run_virtual

FIGURES: Final = frozenset(
    {f"{series}.{kind}" for series in ("in_flight", "limit", "rate") for kind in ("max", "mean", "mode")}
    | {f"rtt.{kind}" for kind in ("max", "mean", "min")}
)
FILE: Final = Path(__file__).parent / "arc_scenarios.json"


@final
@dataclass(frozen=True)
class Scenario:
    """So many requests, one each `interval`, to a link; `fixed` is a limit that no rule moves."""

    name: str
    requests: int
    delay: float
    interval: float = 0.0
    jitter: float = 0.0
    in_flight: Load = NO_LOAD
    rate: Load = NO_LOAD
    fixed: int | None = None

    def link(self) -> Link:
        return Link(self.delay, self.jitter, self.in_flight, self.rate)


@final
@dataclass(frozen=True)
class Trace:
    """What a simulation measured: time series, as `(time, value)`, and their figures."""

    scenario: str
    limit: Levels
    in_flight: Levels
    """Calls in flight at the service, which knows nothing of those it drops."""
    rate: Levels
    rtt: list[tuple[float, float]]
    """When an attempt was answered, and after how many seconds."""
    seconds: float
    """How long it all took."""

    def figure(self, name: str) -> float:
        """Return one figure: `in_flight`, `limit`, `rate` or `rtt`, then `.max`, `.mean`, `.mode` or `.min`."""
        series, _, kind = name.partition(".")
        if series != "rtt":
            return float(getattr(getattr(self, series), kind))
        rtts = [seconds for _, seconds in self.rtt]
        figures: dict[str, float] = {"max": max(rtts), "min": min(rtts), "mean": sum(rtts) / len(rtts)}
        return figures[kind]


def load_scenarios() -> dict[str, dict[str, Any]]:
    """Return the file: by name, the `params` and the `published` ranges.

    Where a figure is out of its published range by design, `ours` has a range of its own for it, with the reason;
    `port` has the same for the published rule, where this simulation cannot be Vector to the letter.
    """
    loaded: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return loaded


def scenario_of(name: str, params: dict[str, Any]) -> Scenario:
    loads: dict[str, Any] = {key: Load(**params[key]) for key in ("in_flight", "rate") if key in params}
    return Scenario(name=name, **(params | loads))


SCENARIOS: Final = {name: scenario_of(name, entry["params"]) for name, entry in load_scenarios().items()}


# ---------------------------------------------------------------------------------------------- simulation


@final
class _Watch(Instrument):
    def __init__(self, levels: Levels) -> None:
        self.levels = levels

    def limit_changed(self, event: LimitChanged, /) -> None:
        self.levels.add(event.new)


def simulate(scenario: Scenario, rule: Limit, *, hold: bool = False, seed: int = 0) -> Trace:
    """Run a scenario under a rule; equal seeds give equal results.

    Each request is repeated until it is answered, a second after it was turned down; an attempt may take a second. With
    `hold` it keeps its slot until then, as in Vector, where the limiter is around the retry.
    """
    rule = rule if scenario.fixed is None else Fixed(scenario.fixed)
    return run_virtual(_simulate, scenario, rule, hold, seed=seed)


async def _simulate(scenario: Scenario, rule: Limit, hold: bool) -> Trace:
    link, limit = scenario.link(), Levels()
    limiter = AdaptiveLimiter(limit=rule, instruments=[_Watch(limit)])
    limit.add(limiter.limit)
    retry = Retry(on=Exception, attempts=10**6, backoff=FullJitter(base=1, factor=1.618))

    async def send() -> None:
        if hold:
            async with limiter.tokens:
                await retry.call(limiter.measured.call, Timeout(1).call, link)
        else:
            await retry.call(limiter.call, Timeout(1).call, link)

    await _send(scenario, send)
    limit.add(limiter.limit)
    limit.since = 2 * scenario.delay  # Vector counts from the second round trip on
    return Trace(scenario.name, limit, link.running, link.arriving, link.rtt, trio.current_time())


async def _send(scenario: Scenario, send: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(scenario.requests):
            nursery.start_soon(send)
            if scenario.interval:
                await trio.sleep(scenario.interval)


# --------------------------------------------------------------------------------------------- other rules


@final
@dataclass(frozen=True)
class Fixed(Limit):
    """No rule at all."""

    limit: int

    def control(self, rng: RandomSource) -> Control:
        return _FixedControl(self.limit)


@final
class _FixedControl(Control):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def update(self, sample: Sample) -> tuple[float, str]:
        return self.limit, "fixed"


@final
@dataclass(frozen=True)
class PublishedARC(Limit):
    """Vector's rule to the letter, its tie included; latencies are rounded to a microsecond, as in its own tests."""

    def control(self, rng: RandomSource) -> Control:
        return _PublishedControl()


@final
class _PublishedControl(Control):
    def __init__(self) -> None:
        self.limit: float = 1
        self.past = Spread(0.4)
        self.rtts: list[float] = []
        self.until = 0.0
        self.dropped = self.reached = False

    def update(self, sample: Sample) -> tuple[float, str]:
        now = sample.start + sample.rtt
        self.reached |= sample.in_flight >= self.limit
        self.dropped |= sample.dropped
        if not sample.dropped:
            self.rtts.append(sample.rtt)
        rtt = round(sum(self.rtts) / len(self.rtts), 6) if self.rtts else None
        if not self.past.count:
            if rtt is not None:
                self.past.add(rtt)
                self.until = now + rtt
        elif round(now - self.until, 6) >= 0:
            self._manage(rtt)
            if rtt is not None:
                self.past.add(rtt)
            self.until = now + self.past.mean
            self.rtts.clear()
            self.dropped = self.reached = False
        return self.limit, ""

    def _manage(self, rtt: float | None) -> None:
        mean, threshold = self.past.mean, self.past.mean + 2.5 * self.past.deviation
        if self.limit < 200 and self.reached and not self.dropped and rtt is not None and rtt <= mean:
            self.limit += 1
        elif self.limit > 1 and (self.dropped or (rtt or 0.0) >= threshold):
            self.limit = max(1, int(self.limit * 0.9))
