"""Notice a retry storm while it is cheap: a loop that hammers, and nobody who looks."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, TypeAlias, TypeVar, TypeVarTuple, final

from trio import current_time

from trio_orchestrator.abc import Instrument, Policy
from trio_orchestrator.algorithms.argument import above, at_least, count, plain_function
from trio_orchestrator.algorithms.episode import LASTS, Episode, Episodes
from trio_orchestrator.algorithms.traffic import Traffic
from trio_orchestrator.block import Hooks, emit
from trio_orchestrator.event import RetryScheduled
from trio_orchestrator.policies.meter import CallMeter, Key, MeterGuard, Watcher, share
from trio_orchestrator.policy_event import StormEnded, StormStarted

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
@dataclass(frozen=True, slots=True)
class StormStatistics:
    """What an alarm has seen."""

    storms: int
    """How many began."""
    storming: tuple[Hashable, ...]
    """What storms now."""


_Finding: TypeAlias = tuple[float, str, float, float]
"""How loud it is (a storm at 1), by which rule, what was measured, and the bound."""


@final
class StormAlarm(Policy, Instrument):
    """Tell, once an episode, that something is called far too often. It watches a `CallMeter`, and refuses nothing.

    Four rules, of which at least one must be given; each is measured for every key of the meter by itself:

    * `calls=1000, per=60`: so many attempts in so many seconds, or more.
    * `retries_ratio=0.5`: so large a share of the attempts of the last `per` seconds are retries, or a larger one, and
      there were at least `minimum` attempts.
    * `spacing=0.1`: in one task, `alike` failures of the same type and text came one after the other, each less than so
      many seconds after the one before. Of a queue's retries, which it is told of as their instrument, only the mean
      distance and not the likeness is known.
    * `times_usual=10`: so many times as many attempts a second as is usual, or more, and at least `minimum` of them.
      Usual is the meter's slow average of what was before the last `per` seconds; without a `warmup` of it there is no
      alarm.

    **Episodes.** A storm starts, with one `StormStarted`, when the first rule is broken; it ends, with one
    `StormEnded`, when half of no bound is reached any more, nor was seen to be for `calm` seconds. What is usual does
    not grow with its storm: it stays as it was before, until `dismiss` takes what the average is now. Nothing runs in
    the background: the end is told when an alarm is next used, by any key, or read. `StormEnded.seconds` reaches to
    the last time that it was seen to be loud.

    Use it like a meter (`call`, `wrap`, `guard`), in its place; or let it watch a meter that is there already:
    `StormAlarm(meter=meter, spacing=0.1)`. Then the calls through that meter are enough: placed in a stack beside its
    meter, it would count everything twice. Give a queue `instruments=[alarm]` so that its retries are seen.

    Args:
        meter: What it watches. By default a meter of its own, with `window=per`.
        calls: Attempts in `per` seconds that are a storm; `math.inf` for never.
        per: Seconds. The window of the meter, if there is one.
        retries_ratio: 0..1; `math.inf` for never.
        spacing: Seconds; 0 for never.
        alike: How many failures in a row, >= 2.
        times_usual: A multiple, > 1; `math.inf` for never.
        minimum: Attempts in `per` seconds below which a share and a multiple say nothing, >= 1.
        warmup: Seconds of traffic, before the last `per` of them, that make a usual rate.
        calm: How many quiet seconds end a storm.
        key: As for `CallMeter`, for a meter of its own.
        on_storm: A plain function, called with the `StormStarted` as an instrument is: after the fact, in the task that
            broke the rule. If it raises, that is logged, and it is never called again.
        name: Shown in its `repr`.
        instruments: Listeners for `storm_started` and `storm_ended`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is out of range or NaN, no rule is given, or `per` is not the window of the meter.
    """

    __slots__ = (
        "_alike",
        "_calls",
        "_ended",
        "_episodes",
        "_meter",
        "_minimum",
        "_name",
        "_ratio",
        "_spacing",
        "_started",
        "_storms",
        "_times_usual",
        "_warmup",
    )

    def __init__(
        self,
        *,
        meter: CallMeter | None = None,
        calls: float = inf,
        per: float = 60.0,
        retries_ratio: float = inf,
        spacing: float = 0.0,
        alike: int = 10,
        times_usual: float = inf,
        minimum: int = 20,
        warmup: float = 600.0,
        calm: float = 60.0,
        key: Key | None = None,
        on_storm: Callable[[StormStarted], object] | None = None,
        name: str = "storm alarm",
        instruments: Sequence[Instrument] = (),
    ) -> None:
        if on_storm is not None:
            plain_function("on_storm", on_storm)
        per = above("per", per, 0, finite=True)
        hooks = Hooks(instruments)
        self._calls = count("calls", calls, 1)
        self._ratio = above("retries_ratio", retries_ratio, 0)
        self._spacing = at_least("spacing", spacing, 0, finite=True)
        self._alike = whole("alike", alike, 2)
        self._times_usual = above("times_usual", times_usual, 1)
        self._minimum = whole("minimum", minimum, 1)
        self._warmup = at_least("warmup", warmup, 0, finite=True)
        self._episodes: Episodes[Hashable] = Episodes(above("calm", calm, 0, finite=True))
        self._check_rules()
        self._meter = _meter_for(meter, per, key, name)
        self._name = name
        self._storms = 0
        self._started: list[Callable[[Any], Any]] = [
            *hooks.of("storm_started"),
            *([] if on_storm is None else [on_storm]),
        ]
        self._ended = hooks.of("storm_ended")
        self._meter.watch(_Watch(self), remember=self._alike if self._spacing else 1)

    def _check_rules(self) -> None:
        if 1 < self._ratio < inf:
            raise ValueError(f"retries_ratio must be <= 1 or math.inf, got {self._ratio!r}")
        if self._calls == self._ratio == self._times_usual == inf and not self._spacing:
            raise ValueError("calls must be given, or retries_ratio, spacing or times_usual")

    def parameters(self) -> dict[str, object]:
        """Return the rules that it was made with; those that were not given are left out."""
        rules = {"calls": self._calls, "retries_ratio": self._ratio, "times_usual": self._times_usual}
        told: dict[str, object] = {name: bound for name, bound in rules.items() if bound < inf}
        if self._spacing:
            told |= {"spacing": self._spacing, "alike": self._alike}
        return {**told, "meter": self._meter, "name": self._name}

    def __repr__(self) -> str:
        return f"<StormAlarm {self._name!r} {len(self._episodes)} storming, {self._storms} storms>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def meter(self) -> CallMeter:
        """The meter that it watches."""
        return self._meter

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)` through the meter and return its result.

        Has the checkpoints of `fn` and adds none. Cancelling it cancels `fn`.
        """
        return await self._meter.call(fn, *args)

    def guard(self, key: Hashable = None) -> MeterGuard:
        """Return a block that is one attempt, as `CallMeter.guard` does. Neither half blocks."""
        return self._meter.guard(sys._getframe(1).f_code.co_qualname if key is None else key)

    def retry_scheduled(self, event: RetryScheduled, /) -> None:
        """Pass an announced retry on to the meter."""
        self._meter.retry_scheduled(event)

    # --------------------------------------------------------------------------------------------- reading

    def storming(self, key: Hashable) -> bool:
        """Tell whether `key` storms now. Sync."""
        self._end_quiet(current_time())
        return self._episodes.of(key) is not None

    def dismiss(self, key: Hashable) -> None:
        """End the storm of `key`, if there is one; what has become usual by now is usual. Sync.

        If a rule is still broken, the next attempt starts another one.
        """
        self._end_quiet(current_time())
        self._tell_end(self._episodes.end(key))

    def statistics(self) -> StormStatistics:
        """Return what it has seen. Sync."""
        self._end_quiet(current_time())
        return StormStatistics(self._storms, self._episodes.keys())

    # --------------------------------------------------------------------------------------------- judging

    def _attempted(self, key: Hashable, traffic: Traffic, now: float) -> None:
        if self._episodes:
            self._end_quiet(now)
            if (episode := self._episodes.of(key)) is not None:
                episode.called()
        self._look(key, traffic, self._of_traffic(key, traffic, now), now)

    def _failed(self, key: Hashable, traffic: Traffic, now: float, times: tuple[float, ...]) -> None:
        self._end_quiet(now)
        self._look(key, traffic, self._of_failures(times), now)

    def _retried(self, key: Hashable, traffic: Traffic, now: float, event: RetryScheduled) -> None:
        self._end_quiet(now)
        finding = max(self._of_traffic(key, traffic, now), self._of_row(event.attempt, event.elapsed))
        self._look(key, traffic, finding, now)

    def _of_traffic(self, key: Hashable, traffic: Traffic, now: float) -> _Finding:
        """Measure by the rules that count; of several broken ones the one that is broken most."""
        calls, _, retries = traffic.counts(now)
        found: _Finding = (calls / self._calls, "calls", calls, self._calls)
        if calls < self._minimum:
            return found
        if self._ratio < inf:
            ratio = share(retries, calls)
            found = max(found, (ratio / self._ratio, "retries", ratio, self._ratio))
        if self._times_usual < inf and (usual := self._usual_for(key, traffic)):
            times = calls / traffic.window / usual
            found = max(found, (times / self._times_usual, "times_usual", times, self._times_usual))
        return found

    def _usual_for(self, key: Hashable, traffic: Traffic) -> float:
        """Return the calls a second that are usual; in a storm, those that were when it began."""
        episode = self._episodes.of(key)
        return self._usual_of(traffic) if episode is None else episode.usual

    def _usual_of(self, traffic: Traffic) -> float:
        """Return the usual calls a second; 0 if that is not known."""
        return traffic.usual.value if traffic.usual.learned >= self._warmup else 0.0

    def _of_failures(self, times: tuple[float, ...]) -> _Finding:
        """Measure the row of failures, each of which was near to the one before, that the last one belongs to."""
        row = 1
        while row < len(times) and times[-row] - times[-row - 1] < self._spacing:
            row += 1
        return self._of_row(row, times[-1] - times[-row])

    def _of_row(self, row: int, seconds: float) -> _Finding:
        gap = seconds / (row - 1) if row > 1 else inf
        return row / self._alike if gap < self._spacing else 0.0, "spacing", gap, self._spacing

    def _look(self, key: Hashable, traffic: Traffic, finding: _Finding, now: float) -> None:
        loudness, reason, value, bound = finding
        if loudness >= LASTS and self._episodes.look(key, loudness, now, self._usual_of(traffic)):
            self._storms += 1
            if self._started:
                emit(self._started, StormStarted(key, reason, value, bound))

    def _end_quiet(self, now: float) -> None:
        for episode in self._episodes.over(now, partial(self._is_loud, now)):
            self._tell_end(episode)

    def _is_loud(self, now: float, key: Hashable) -> bool:
        traffic = self._meter.traffic_of(key)
        return traffic is not None and self._of_traffic(key, traffic, now)[0] >= LASTS

    def _tell_end(self, episode: Episode[Hashable] | None) -> None:
        if episode is not None and self._ended:
            emit(self._ended, StormEnded(episode.key, episode.seconds, episode.calls))


@final
class _Watch(Watcher):
    """What the alarm's meter tells."""

    __slots__ = ("_alarm",)

    def __init__(self, alarm: StormAlarm) -> None:
        self._alarm = alarm

    def attempted(self, key: Hashable, traffic: Traffic, now: float) -> None:
        self._alarm._attempted(key, traffic, now)

    def failed(self, key: Hashable, traffic: Traffic, now: float, times: tuple[float, ...]) -> None:
        self._alarm._failed(key, traffic, now, times)

    def retried(self, key: Hashable, traffic: Traffic, now: float, event: RetryScheduled) -> None:
        self._alarm._retried(key, traffic, now, event)


def whole(name: str, value: object, least: int) -> int:
    """Return `value`, or raise: it must be a whole number >= `least`, and finite."""
    at_least(name, value, least, finite=True)
    return int(count(name, value, least))


def _meter_for(meter: CallMeter | None, per: float, key: Key | None, name: str) -> CallMeter:
    if meter is None:
        return CallMeter(window=per, key=key, name=name)
    if not isinstance(meter, CallMeter):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"meter must be a CallMeter, got {meter!r}")
    if key is not None:
        raise ValueError("key must be given to the meter, not to the alarm that watches it")
    if per != meter.window:
        raise ValueError(f"per must be the window of the meter, {meter.window:g}, got {per!r}")
    return meter
