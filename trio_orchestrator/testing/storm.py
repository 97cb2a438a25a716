"""Fail a test in which something is attempted too often: a retry without a pause, a loop that hammers."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar, final

import trio

from trio_orchestrator.algorithms.argument import above, at_least, count
from trio_orchestrator.algorithms.traffic import Traffic
from trio_orchestrator.block import raise_untouched, without_cancelled
from trio_orchestrator.policies.decision import name_of
from trio_orchestrator.policies.meter import CallMeter, Watcher

T = TypeVar("T")
P = ParamSpec("P")

_OURS: Final = str(Path(__file__).parents[1])
_TRIOS: Final = str(Path(trio.__file__).parent)
_NEARLY: Final = 1 - 1e-9  # pauses of 0.2 s add up to a little less than a second


@final
class NoStorm(Watcher):
    """The inside of `no_storm`: sees attempts, and remembers the first that was one too many."""

    def __init__(self, calls: int, within: float) -> None:
        self._calls = calls
        self._within = within * _NEARLY
        self._times: dict[Hashable, deque[float]] = {}
        self._totals: dict[Hashable, int] = {}
        self._scope: trio.CancelScope | None = None
        self.complaint: str | None = None
        """What was attempted too often, where and when; None as long as nothing was."""

    def watch(self, fn: Callable[P, Awaitable[T]], *, key: Hashable = None) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return `fn`, an async function, with its calls seen: same signature, same name.

        Hand it to the code under test in place of the dependency. `key` is what it counts for; by default its name.
        """
        name = name_of(fn) if key is None else key

        @wraps(fn)
        async def watched(*args: P.args, **kwargs: P.kwargs) -> T:
            self.attempt(name)
            return await fn(*args, **kwargs)

        return watched

    def attempt(self, key: Hashable) -> None:
        """See an attempt now, for what is not an async function. Sync; never raises."""
        self._seen(key, trio.current_time())

    def attempted(self, key: Hashable, traffic: Traffic, now: float) -> None:
        """See an attempt that a meter has counted."""
        self._seen(key, now)

    def count(self, key: Hashable) -> int:
        """Return how many attempts were seen for `key`."""
        return self._totals.get(key, 0)

    def _seen(self, key: Hashable, now: float) -> None:
        self._totals[key] = self._totals.get(key, 0) + 1
        times = self._times.setdefault(key, deque(maxlen=self._calls + 1))
        if times and now < times[-1]:  # another run, with a clock of its own
            times.clear()
        times.append(now)
        if self.complaint is None and len(times) > self._calls and now - times[0] < self._within:
            self.complaint = self._complain(key, list(times))
            if self._scope is not None:
                self._scope.cancel(reason="no_storm: too many attempts")

    def _complain(self, key: Hashable, times: list[float]) -> str:
        listed = ", ".join(f"{time:.6g}" for time in times)
        return (
            f"{key!r} was attempted {len(times)} times in {times[-1] - times[0]:.6g} s, more than {self._calls} within"
            f" {self._within:g} s; called from {_call_site()}; at {listed}"
        )


@contextmanager
def no_storm(*, calls: int = 5, within: float = 1.0, meter: CallMeter | None = None) -> Generator[NoStorm, None, None]:
    """Fail if one thing is attempted more than `calls` times in any window of `within` seconds of Trio's clock.

    It sees the attempts of the functions that it was asked to watch, whoever repeats them: a `Retry`, a queue, a client
    of your own, a `while True`; and those that pass `meter`::

        with no_storm(calls=5, within=1) as storm:
            await sync_everything(storm.watch(push))

    Windows are exact and half-open: `calls` + 1 attempts of which the last is less than `within` after the first. Each
    key (the name of the function) is counted by itself, and in all tasks together.

    At the first attempt that is too many, the block is cancelled: a loop that never ends does not hang the test. The
    attempt itself sees nothing of it, since an error would only be repeated. When the block is left it raises, also in
    place of an `Exception` that came out of it (then its cause), or of a `trio.Cancelled`.

    Neither half waits. Around `trio.run`, instead of inside, it works too, except that nothing is cancelled.

    Args:
        calls: How many attempts are still fine, >= 0.
        within: Seconds, > 0; `math.inf` limits them all together.
        meter: A `CallMeter` (an alarm's: `alarm.meter`) whose attempts are seen.

    Raises:
        AssertionError: Names what was attempted, from where, how often, and when.
        TypeError: An argument has the wrong type.
        ValueError: A number is out of range or NaN.
    """
    at_least("calls", calls, 0, finite=True)
    storm = NoStorm(int(count("calls", calls, 0)), above("within", within, 0))
    if meter is not None:
        if not isinstance(meter, CallMeter):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"meter must be a CallMeter, got {meter!r}")
        meter.watch(storm)
    try:
        with _scope_for(storm):
            yield storm
    except BaseException as error:
        if storm.complaint is not None and _may_be_replaced(error):
            raise AssertionError(storm.complaint) from error
        raise
    finally:
        if meter is not None:
            meter.forget(storm)
    if storm.complaint is not None:
        raise AssertionError(storm.complaint)


@contextmanager
def _scope_for(storm: NoStorm) -> Generator[None, None, None]:
    if not trio.lowlevel.in_trio_task():
        yield
        return
    kept: BaseException | None = None
    with trio.CancelScope() as storm._scope:
        try:
            yield
        except BaseException as error:
            if without_cancelled(error) is not error:
                raise
            kept = error  # kept from the scope, which would make another group of a group
    if kept is not None:
        raise_untouched(kept)


def _may_be_replaced(error: BaseException) -> bool:
    """Tell whether it is an `Exception`, or a cancellation, or made of both; not a `KeyboardInterrupt` or the like."""
    rest = without_cancelled(error)
    return rest is None or isinstance(rest, Exception)


def _call_site() -> str:
    """Return the place of the innermost caller, in this task, that is not ours; a queue's worker has none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (path := frame.f_code.co_filename).startswith(_TRIOS):
        if not path.startswith(_OURS):
            return f"{path}:{frame.f_lineno} ({frame.f_code.co_qualname})"
        frame = frame.f_back
    return "a task of ours"
