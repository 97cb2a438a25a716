"""When a circuit breaker opens. A rule is an immutable value; `tally()` makes its run state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import final

from trio_orchestrator.algorithms.argument import above, count
from trio_orchestrator.algorithms.window import CountWindow, TimeWindow


class Tally(ABC):
    """The run state of a rule: what it remembers of the calls since the circuit was last closed."""

    __slots__ = ()

    @abstractmethod
    def record(self, now: float, failed: bool, slow: bool) -> bool:
        """Count a call that has ended; return whether the circuit has to open."""

    @abstractmethod
    def is_empty(self, now: float) -> bool:
        """Tell whether it remembers nothing at `now` that could still matter."""


class Trip(ABC):
    """A rule that opens a circuit. Rules combine: `Consecutive(5) | SlowRatio(0.8)` opens when either would."""

    __slots__ = ()

    @property
    def sees_slow(self) -> bool:
        """Whether it looks at slow calls, so that the breaker's `slow_call` has to say what is slow."""
        return False

    @abstractmethod
    def tally(self) -> Tally:
        """Return a fresh run state."""

    def __or__(self, other: Trip) -> AnyOf:
        return AnyOf(self, other)


@final
class Consecutive(Trip):
    """Open after so many failures in a row. A success between them starts the count anew.

    Simple, and blind to a service that fails every second call.

    Args:
        failures: A whole number >= 1.
    """

    __slots__ = ("_failures",)

    def __init__(self, failures: int) -> None:
        self._failures = count("failures", failures, 1)

    def __repr__(self) -> str:
        return f"Consecutive({self._failures:g})"

    def tally(self) -> Tally:
        """Return a fresh run state."""
        return _InARow(self._failures)


class _ShareRule(Trip):
    """A rule that looks at a share of the latest calls."""

    __slots__ = ("_share",)

    def __init__(
        self, ratio: float, *, calls: int | None = None, seconds: float | None = None, minimum: int | None = None
    ) -> None:
        self._share = _Share(ratio, calls, seconds, minimum)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._share})"


@final
class Ratio(_ShareRule):
    """Open when the share of failures among the latest calls is at least `ratio`.

    The latest calls are the last `calls`, or those of the last `seconds` (in ten buckets: a call is forgotten when it
    is 9/10 to 10/10 of that old; time passes also when nobody calls). Fewer than `minimum` of them decide nothing.
    Looked at after each call, successful ones too, since they may complete the minimum.

    Args:
        ratio: A fraction, above 0 and at most 1.
        calls: How many calls to look at: a whole number >= 1. Without it `seconds` counts.
        seconds: How far to look back, finite and > 0. Default: 10, if `calls` is not given.
        minimum: A whole number >= 1, and at most `calls`. Default: 10, or `calls` if that is less.
    """

    __slots__ = ()

    def tally(self) -> Tally:
        """Return a fresh run state."""
        return self._share.tally()


@final
class SlowRatio(_ShareRule):
    """Open when the share of *slow* calls among the latest is at least `ratio`, whether they failed or not.

    What is slow is said by the breaker's `slow_call`. The arguments are those of `Ratio`.
    """

    __slots__ = ()

    @property
    def sees_slow(self) -> bool:
        """True."""
        return True

    def tally(self) -> Tally:
        """Return a fresh run state."""
        return _Slow(self._share.tally())


@final
class AnyOf(Trip):
    """Open when any of these rules would. Each sees every call. The same as `a | b | c`.

    Args:
        rules: At least one.
    """

    __slots__ = ("rules",)

    def __init__(self, *rules: Trip) -> None:
        if not rules:
            raise TypeError("rules must not be empty")
        for rule in rules:
            if not isinstance(rule, Trip):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"rules must be Trip rules such as Ratio(0.5), got {rule!r}")
        self.rules: tuple[Trip, ...] = rules

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.rules))

    @property
    def sees_slow(self) -> bool:
        """Whether any of them does."""
        return any(rule.sees_slow for rule in self.rules)

    def tally(self) -> Tally:
        """Return a fresh run state."""
        return _Several([rule.tally() for rule in self.rules])


# ------------------------------------------------------------------------------------------------ run states


@final
class _Share:
    """The arguments of a rule that looks at a share, checked."""

    __slots__ = ("calls", "minimum", "ratio", "seconds")

    def __init__(self, ratio: float, calls: int | None, seconds: float | None, minimum: int | None) -> None:
        self.ratio: float = above("ratio", ratio, 0)
        if self.ratio > 1:
            raise ValueError(f"ratio must be <= 1, got {ratio!r}")
        if calls is not None and seconds is not None:
            raise TypeError("calls must not be given together with seconds")
        self.calls: int | None = None if calls is None else _finite_count("calls", calls)
        self.seconds: float = above("seconds", 10.0 if seconds is None else seconds, 0, finite=True)
        most = math.inf if self.calls is None else self.calls
        self.minimum: float = min(10, most) if minimum is None else _finite_count("minimum", minimum)
        if self.minimum > most:
            raise ValueError(f"minimum must be <= calls ({most}), got {minimum!r}")

    def __str__(self) -> str:
        window = f"seconds={self.seconds:g}" if self.calls is None else f"calls={self.calls}"
        return f"{self.ratio:g}, {window}, minimum={self.minimum:g}"

    def tally(self) -> Tally:
        window = TimeWindow(self.seconds) if self.calls is None else CountWindow(self.calls)
        return _Windowed(window, self.ratio, self.minimum)


def _finite_count(name: str, value: float) -> int:
    number = count(name, value, 1)
    if number == math.inf:
        raise ValueError(f"{name} must be finite, got {value!r}")
    return int(number)


@final
class _InARow(Tally):
    __slots__ = ("_bound", "_failures")

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._failures = 0

    def record(self, now: float, failed: bool, slow: bool) -> bool:
        if not failed:
            self._failures = 0
            return False
        self._failures += 1
        return self._failures >= self._bound

    def is_empty(self, now: float) -> bool:
        return not self._failures


@final
class _Windowed(Tally):
    __slots__ = ("_minimum", "_ratio", "_window")

    def __init__(self, window: TimeWindow | CountWindow, ratio: float, minimum: float) -> None:
        self._window = window
        self._ratio = ratio
        self._minimum = minimum

    def record(self, now: float, failed: bool, slow: bool) -> bool:
        window = self._window
        window.add(now, failed)
        if not window.bad:
            return False
        calls = window.calls
        return calls >= self._minimum and window.bad / calls >= self._ratio  # 0.07 * 100 would be more than 7

    def is_empty(self, now: float) -> bool:
        self._window.expire(now)
        return not self._window.calls


@final
class _Slow(Tally):
    __slots__ = ("_inner",)

    def __init__(self, inner: Tally) -> None:
        self._inner = inner

    def record(self, now: float, failed: bool, slow: bool) -> bool:
        return self._inner.record(now, slow, slow)

    def is_empty(self, now: float) -> bool:
        return self._inner.is_empty(now)


@final
class _Several(Tally):
    __slots__ = ("_tallies",)

    def __init__(self, tallies: list[Tally]) -> None:
        self._tallies = tallies

    def record(self, now: float, failed: bool, slow: bool) -> bool:
        return any([tally.record(now, failed, slow) for tally in self._tallies])  # noqa: C419 - each has to see the call

    def is_empty(self, now: float) -> bool:
        return all(tally.is_empty(now) for tally in self._tallies)
