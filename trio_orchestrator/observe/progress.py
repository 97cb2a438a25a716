"""How far many jobs have come: a bar on a terminal, a log line every few seconds elsewhere.

Knows nothing of queues: it asks a function for counts.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast, final

import trio

from trio_orchestrator.algorithms.pace import Pace, remaining
from trio_orchestrator.block import emit

if TYPE_CHECKING:
    from rich.progress import Progress

_logger = logging.getLogger("trio_orchestrator")


class Counts(Protocol):
    """What progress is computed from; `queue.statistics()` is one."""

    @property
    def submitted(self) -> int:
        """Jobs in all, so far."""
        ...

    @property
    def succeeded(self) -> int:
        """Jobs that returned."""
        ...

    @property
    def failed(self) -> int:
        """Jobs that raised, retries included."""
        ...

    @property
    def cancelled(self) -> int:
        """Jobs that were cancelled."""
        ...

    @property
    def dropped(self) -> int:
        """Jobs that never ran."""
        ...

    @property
    def retries(self) -> int:
        """Attempts after the first."""
        ...


@final
class Meter:
    """Turn counts into a text: rate, failures, retries and ETA."""

    __slots__ = ("_pace", "_started_at", "_total", "done", "total")

    def __init__(self, now: float, total: float | None = None) -> None:
        self._started_at = now
        self._total = total
        self._pace = Pace()
        self.done: int = 0
        self.total: float = 0

    def read(self, counts: Counts, now: float) -> str:
        """Return the text while the work goes on; the rate is that of the last ten seconds."""
        self._count(counts)
        rate = self._pace.rate(self.done, now)
        return _text(rate, counts, f"ETA {clock(remaining(self.total - self.done, rate))}")

    def close(self, counts: Counts, now: float) -> str:
        """Return the text when it is over; the rate is that of the whole time."""
        self._count(counts)
        took = now - self._started_at
        return _text(self.done / took if took > 0 else 0.0, counts, f"took {clock(took)}")

    def _count(self, counts: Counts) -> None:
        self.done = counts.succeeded + counts.failed + counts.cancelled + counts.dropped
        self.total = max(counts.submitted, self._total or 0)


def _text(rate: float, counts: Counts, end: str) -> str:
    parts = [f"{rate:.1f}/s", f"{counts.failed} failed", f"{counts.retries} retries"]
    parts += [f"{n} {what}" for n, what in ((counts.cancelled, "cancelled"), (counts.dropped, "dropped")) if n]
    return ", ".join([*parts, end])


def clock(seconds: float) -> str:
    """Write a duration as a clock does: `0:07`, `2:05`, `1:00:00`; `-` if it is not finite."""
    if not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Display(Protocol):
    """Where progress is shown. Sync: a slow terminal holds everything up."""

    every: float
    """Seconds between two calls of `show`."""

    def show(self, done: int, total: float, text: str) -> None:
        """Replace what is shown."""
        ...

    def close(self) -> None:
        """Leave what was shown last, and end."""
        ...


@final
class LineDisplay:
    """A line of the logger `trio_orchestrator` (INFO) whenever something has changed."""

    every: float = 5.0

    def __init__(self, title: str) -> None:
        self._title = title
        self._last = ""

    def show(self, done: int, total: float, text: str) -> None:
        """Write a line, unless the last one said the same."""
        line = f"{done}/{total:.0f}, {text}"
        if line != self._last:
            _logger.info("%s: %s", self._title, line)
            self._last = line

    def close(self) -> None:
        """Do nothing: every line is complete."""


@final
class BarDisplay:
    """A bar in a `rich.progress.Progress`, which is somebody else's, or ours and drawn on stderr.

    The figures are in the description of the bar, so that they show whatever its columns are.
    """

    every: float = 0.1

    def __init__(self, title: str, progress: Progress | None = None) -> None:
        from rich.markup import escape

        self._escape = escape
        self._title = title
        self._owned = progress is None
        self._progress = progress or _progress_on_stderr()
        if self._owned:
            self._progress.start()
        self._task = self._progress.add_task(escape(title), total=None)

    def show(self, done: int, total: float, text: str) -> None:
        """Move the bar; a total of inf is shown as unknown."""
        known = total if total < math.inf else None
        label = self._escape(f"{self._title}: {text}")
        self._progress.update(self._task, description=label, completed=done, total=known, refresh=self._owned)

    def close(self) -> None:
        """Stop the live display if it is ours; the bar stays on the screen."""
        if self._owned:
            self._progress.stop()


def _progress_on_stderr() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=Console(stderr=True), auto_refresh=False, get_time=trio.current_time)


def _open_display(progress: object, title: str) -> Display:
    if progress is not True:
        return BarDisplay(title, cast("Progress", progress))
    if sys.stderr and sys.stderr.isatty():
        try:
            return BarDisplay(title)
        except ImportError:
            _logger.debug("rich is not installed: progress is shown as log lines")
        except Exception:
            _logger.exception("a progress bar cannot be shown")
    return LineDisplay(title)


def check_progress(progress: object) -> None:
    """Raise unless it is a bool, or something like a `rich.progress.Progress`."""
    if not isinstance(progress, bool) and not (hasattr(progress, "add_task") and hasattr(progress, "update")):
        raise TypeError(f"progress must be a bool or a rich.progress.Progress, got {progress!r}")


def progress_task(
    progress: bool | object, source: Callable[[], Counts], *, name: str, total: float | None = None
) -> Callable[[], Awaitable[None]]:
    """Return the task that shows progress for as long as it runs: start it in a nursery, cancel it at the end.

    Args:
        progress: True for a bar if stderr is a terminal and rich is installed, else log lines; a
            `rich.progress.Progress` (started and stopped by its owner) to add a bar to it; False for a task that
            returns at once.
        source: Returns the present counts, for example `queue.statistics`.
        name: The title.
        total: How many jobs there will be, if that is known; `math.inf` for an endless source.

    Raises:
        TypeError: If `progress` is neither a bool nor something like a `rich.progress.Progress`.
    """
    if progress is False:
        return trio.lowlevel.checkpoint
    check_progress(progress)
    return partial(show_progress, source, progress=progress, title=name, total=total)


async def show_progress(
    source: Callable[[], Counts], *, progress: object = True, title: str, total: float | None = None
) -> None:
    """Show the progress of `source()` until cancelled, and its final state on the way out.

    On a bar ten times a second, as a log line (logger `trio_orchestrator`, INFO) every 5 seconds, by Trio's clock. A
    display that raises is logged once and not used again: progress never ends the work it shows.

    Never returns by itself: cancel it. The final state is then shown at once, synchronously: if the work was cut short,
    the state at that moment, clean-up not awaited.
    """
    display = _open_display(progress, title)
    due = trio.current_time()
    meter = Meter(due, total)
    meter.read(source(), due)  # the base of the first rate

    def show(read: Callable[[Counts, float], str]) -> None:
        text = read(source(), trio.current_time())
        display.show(meter.done, meter.total, text)

    showing: list[Callable[[Any], None]] = [show]
    try:
        while True:
            due = max(due + display.every, trio.current_time())
            await trio.sleep_until(due)
            emit(showing, meter.read)
    finally:
        emit(showing, meter.close)
        emit([lambda _: display.close()], None)
