"""Count attempts where they pass: how many, how many failed, how many repeat one that failed, and how soon."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from types import FunctionType, MethodType, TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeGuard, TypeVar, TypeVarTuple, final

from trio import current_time

from trio_orchestrator.abc import CALL_FRAMES, Instrument, Policy
from trio_orchestrator.algorithms.argument import above, count, plain_function
from trio_orchestrator.algorithms.traffic import Traffic
from trio_orchestrator.event import RetryScheduled
from trio_orchestrator.policies.decision import name_of
from trio_orchestrator.policies.failure import On
from trio_orchestrator.policies.verdict import FAILURE, SUCCESS, Judge, Verdict

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Key: TypeAlias = Callable[[Callable[..., object], tuple[Any, ...]], Hashable]
"""Names what `fn(*args)` calls."""

_REMEMBERED: Final = 8  # failures of so many keys are remembered in one context
_RESULT: Final = 0


@final
@dataclass(frozen=True, slots=True)
class Spacing:
    """The seconds from a failure to the attempt that repeats it, of the latest 64 retries of each key; 0.0 if none."""

    least: float
    p50: float
    p90: float
    count: int
    """How many retries these figures are of."""


@final
@dataclass(frozen=True, slots=True)
class MeterStatistics:
    """What passed a meter in the window that ends now."""

    window: float
    """Seconds."""
    keys: int
    """How many different things were called."""
    calls: int
    """Attempts: first ones and retries."""
    failures: int
    retries: int
    ratio: float
    """The share of the calls that are retries, 0..1."""
    per_second: float
    """Calls a second, as the mean over the window."""
    per_minute: float
    usual_per_second: float
    """The slow average of `per_second` before this window; 0.0 until something has left it."""
    spacing: Spacing


@final
class Mark(NamedTuple):
    """The last attempt of a key, in the context that made it, has failed."""

    kind: int
    """The same for failures of the same type and text."""
    times: tuple[float, ...]
    """When the latest failures of this kind, one after the other, were seen."""
    counted: bool
    """Whether the retry that follows has been counted."""


class Watcher:
    """Told of everything that a meter counts, after it has counted it, in the task that did it. Sync."""

    __slots__ = ()

    def attempted(self, key: Hashable, traffic: Traffic, now: float) -> None:
        """An attempt starts, a retry perhaps."""

    def failed(self, key: Hashable, traffic: Traffic, now: float, times: tuple[float, ...]) -> None:
        """An attempt has failed: the last of `times`, which are failures like it, one after the other."""

    def retried(self, key: Hashable, traffic: Traffic, now: float, event: RetryScheduled) -> None:
        """A retry was announced."""


@final
class CallMeter(Policy, Instrument):
    """Count attempts, failures and retries for each thing that is called, over the last `window` seconds.

    Place it where attempts pass, innermost: inside the `Retry`, next to the function. What an inner policy refuses is
    counted as an attempt. It never waits, refuses or changes anything, and costs O(1) a call::

        result = await meter.call(push, item)  # or in a stack, or @meter.wrap

        with meter.guard("push"):  # hand-written code
            await push(item)

    **Keys.** By default the qualified name of the function; `key(fn, args)` may look closer. At most `max_keys` are
    kept: the one that was called the longest time ago makes room.

    **Retries.** An attempt is a retry if the last attempt of its key *in the same context* failed, within the last
    `window` seconds. That finds a `Retry`, and just as well a `while True` around a `try`. A task and a job have a
    context of their own, so that 100 tasks that fail once are no retries. A loop over many items is taken for retries
    after a failure, unless `key` tells the items apart. An attempt that runs in a child task leaves its mark there: put
    the meter around a `Hedge`, not in it, if its retries are to be seen.

    A queue starts each attempt of a job in a fresh context, so its retries are seen in another way: the meter is an
    instrument too. With `instruments=[meter]` at the queue (or at a `Retry`; both is fine) a retry is counted, once,
    when it is announced, for the key of the attempt that has just failed; its spacing is the pause that was announced.
    Submit `meter.wrap(fn)`, or protect the whole queue: `protect=meter` sees one key, the queue's.

    **Windows** expire when they are read, in steps of a thirtieth: a figure covers the window less up to one step.
    A call that is cancelled from outside is neither a success nor a failure; one ended by a time-out of ours failed.
    Whatever was counted in an earlier run of Trio is forgotten in the next, whose clock is another one.

    Args:
        window: Seconds, > 0 and finite.
        key: A plain function of (fn, args) that names what is called; the arguments are the positional ones.
        on: Which exceptions are failures. After another one the next attempt is no retry: the other side answered.
        classify: A plain function that tells of a *result* whether it is a failure. In a `guard`, say `failed()`.
        usual_over: The time constant of the slow average, in seconds.
        max_keys: How many keys are kept, >= 1.
        name: Shown in its `repr`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is out of range or NaN.
    """

    __slots__ = (
        "_judge",
        "_key",
        "_latest",
        "_marks",
        "_max_keys",
        "_name",
        "_remember",
        "_traffic",
        "_usual_over",
        "_watchers",
        "_window",
    )

    def __init__(
        self,
        *,
        window: float = 60.0,
        key: Key | None = None,
        on: On = Exception,
        classify: Callable[[Any], bool] | None = None,
        usual_over: float = 3600.0,
        max_keys: float = 1024,
        name: str = "meter",
    ) -> None:
        if key is not None:
            plain_function("key", key)
        self._window = above("window", window, 0, finite=True)
        self._key = key
        self._judge = Judge(on, (), classify)
        self._usual_over = above("usual_over", usual_over, 0, finite=True)
        self._max_keys = count("max_keys", max_keys, 1)
        self._name = name
        self._traffic: OrderedDict[Hashable, Traffic] = OrderedDict()  # the key called last is the last one
        self._latest = -inf  # when it was last used
        self._marks: ContextVar[dict[Hashable, Mark] | None] = ContextVar("trio_orchestrator.marks", default=None)
        self._watchers: tuple[Watcher, ...] = ()
        self._remember = 1  # so many failures of a kind, one after the other

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        told = {"window": self._window, "key": self._key, "usual_over": self._usual_over, "max_keys": self._max_keys}
        return {**told, **self._judge.parameters(), "name": self._name}

    def __repr__(self) -> str:
        return f"<CallMeter {self._name!r} window {self._window:g} s, {len(self._traffic)} keys>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def window(self) -> float:
        """Over how many seconds it counts."""
        return self._window

    # ------------------------------------------------------------------------------------------- counting

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)`, count it, and return its result.

        Has the checkpoints of `fn` and adds none. Cancelling it cancels `fn`.
        """
        with MeterGuard(self, self.key_of(fn, args)) as attempt:
            result = await fn(*args)
            if self._judge.classify is not None and self._judge.classify(result):
                attempt.failed()
            return result

    def guard(self, key: Hashable = None) -> MeterGuard:
        """Return a block that is one attempt: `with meter.guard("push"):`. Neither half blocks.

        Without a key it is named after the function that asks.
        """
        return MeterGuard(self, sys._getframe(1).f_code.co_qualname if key is None else key)

    def key_of(self, fn: Callable[..., object], args: tuple[Any, ...] = ()) -> Hashable:
        """Return the key that `call(fn, *args)` counts for."""
        if self._key is None and type(fn) is FunctionType:
            return fn.__qualname__
        fn, args = _innermost(fn, args)
        return name_of(fn) if self._key is None else self._key(fn, args)

    def retry_scheduled(self, event: RetryScheduled, /) -> None:
        """Count a retry that a queue or a `Retry` announces, for the attempt of this context that has just failed."""
        marks = self._marks.get()
        if not marks:
            return
        key = next(reversed(marks))
        mark = marks[key]
        if mark.counted:
            return
        now = current_time()
        self._marks.set({**marks, key: mark._replace(counted=True)})
        traffic = self._opened(key, now)
        traffic.retried(now, event.delay)
        for watcher in self._watchers:
            watcher.retried(key, traffic, now, event)

    def _begin(self, key: Hashable) -> None:
        now = current_time()
        traffic = self._opened(key, now)
        traffic.called(now)
        marks = self._marks.get()
        if marks and (mark := marks.get(key)) is not None and not mark.counted:
            pause = now - mark.times[-1]
            if pause < self._window:
                traffic.retried(now, pause)
        for watcher in self._watchers:
            watcher.attempted(key, traffic, now)

    def _settle(self, key: Hashable, verdict: Verdict, kind: int) -> None:
        if verdict is FAILURE:
            self._fail(key, kind)
        elif verdict is SUCCESS:
            self._succeed(key)

    def _succeed(self, key: Hashable) -> None:
        marks = self._marks.get()
        if marks and key in marks:
            self._marks.set({other: mark for other, mark in marks.items() if other != key})

    def _fail(self, key: Hashable, kind: int) -> None:
        now = current_time()
        marks = dict(self._marks.get() or {})
        mark = marks.pop(key, None)
        before = mark.times if mark is not None and mark.kind == kind else ()
        times = (*before, now)[-self._remember :]
        if len(marks) >= _REMEMBERED:
            del marks[next(iter(marks))]
        self._marks.set({**marks, key: Mark(kind, times, False)})
        traffic = self._opened(key, now)
        traffic.failed(now)
        for watcher in self._watchers:
            watcher.failed(key, traffic, now, times)

    def _opened(self, key: Hashable, now: float) -> Traffic:
        self._look(now)
        traffic = self._traffic.get(key)
        if traffic is None:
            if len(self._traffic) >= self._max_keys:
                self._traffic.popitem(last=False)
            traffic = self._traffic[key] = Traffic(self._window, self._usual_over, now)
        else:
            self._traffic.move_to_end(key)
        return traffic

    def _look(self, now: float) -> None:
        """Forget all if the clock is that of another run."""
        if now < self._latest:
            self._traffic.clear()
        self._latest = now

    # -------------------------------------------------------------------------------------------- reading

    def keys(self) -> tuple[Hashable, ...]:
        """Return what was called in the window, in the order of the last calls."""
        self._look(now := current_time())
        return tuple(key for key, traffic in self._traffic.items() if any(traffic.counts(now)))

    def statistics(self, key: Hashable = None) -> MeterStatistics:
        """Return what passed in the window for one key; None: for all of them together. Sync."""
        self._look(now := current_time())
        found = self._traffic.values() if key is None else [self._traffic[key]] if key in self._traffic else []
        counted = [traffic.counts(now) for traffic in found]
        calls, failures, retries = (sum(counts[which] for counts in counted) for which in range(3))
        return MeterStatistics(
            window=self._window,
            keys=sum(any(counts) for counts in counted),
            calls=calls,
            failures=failures,
            retries=retries,
            ratio=share(retries, calls),
            per_second=calls / self._window,
            per_minute=calls * 60 / self._window,
            usual_per_second=sum(traffic.usual.value for traffic in found),
            spacing=_spacing(pause for traffic in found for pause in traffic.pauses(now)),
        )

    # ------------------------------------------------------------------------------------------- watching

    def traffic_of(self, key: Hashable) -> Traffic | None:
        """Return what is counted for `key`; None if it was never called, or is forgotten."""
        self._look(current_time())
        return self._traffic.get(key)

    def watch(self, watcher: Watcher, *, remember: int = 1) -> None:
        """Have `watcher` told of all that is counted from now on, with `remember` failures of a kind at most."""
        self._watchers = (*self._watchers, watcher)
        self._remember = max(self._remember, remember)

    def forget(self, watcher: Watcher) -> None:
        """Undo `watch`."""
        self._watchers = tuple(other for other in self._watchers if other is not watcher)


@final
class MeterGuard:
    """One attempt, as a block; entered again, another one. Neither half blocks."""

    __slots__ = ("_failed", "_meter", "key")

    def __init__(self, meter: CallMeter, key: Hashable) -> None:
        self._meter = meter
        self._failed = False
        self.key: Hashable = key
        """What it counts for."""

    def failed(self) -> None:
        """Say that the attempt has failed, though nothing was raised."""
        self._failed = True

    def __enter__(self) -> Self:
        self._failed = False
        self._meter._begin(self.key)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        meter, key = self._meter, self.key
        if error is None:
            if self._failed:
                meter._fail(key, _RESULT)
            else:
                meter._succeed(key)
        else:
            likeness = _likeness(error)
            meter._judge.report(error, lambda verdict: meter._settle(key, verdict, likeness))


def share(part: float, whole: float) -> float:
    """Return part / whole, between 0 and 1; 0 if there is no whole."""
    return min(1.0, part / whole) if whole else 0.0


def _innermost(fn: Any, args: tuple[Any, ...]) -> tuple[Callable[..., object], tuple[Any, ...]]:
    """Return the function that `fn(*args)` calls in the end, and its positional arguments."""
    while True:
        if _is_partial(fn):
            fn, args = fn.func, (*fn.args, *args)
        elif args and isinstance(fn, MethodType) and getattr(fn.__func__, "__code__", None) in CALL_FRAMES:
            fn, args = args[0], args[1:]  # a policy in between
        else:
            return fn, args


def _is_partial(fn: object) -> TypeGuard[partial[Any]]:
    return isinstance(fn, partial)


def _likeness(error: BaseException) -> int:
    """Return a number that is the same for errors of one type and text."""
    try:
        return hash((type(error), str(error)))
    except Exception:  # it cannot show itself
        return hash(type(error))


def _spacing(pauses: Iterable[float]) -> Spacing:
    ordered = sorted(pauses)
    if not ordered:
        return Spacing(0.0, 0.0, 0.0, 0)
    p50, p90 = (ordered[ceil(fraction * len(ordered)) - 1] for fraction in (0.5, 0.9))
    return Spacing(ordered[0], p50, p90, len(ordered))
