from __future__ import annotations

import io
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import trio
from rich.console import Console
from rich.progress import Progress
from trio.testing import MockClock

from trio_orchestrator.observe.progress import Counts, Meter, clock, progress_task


@dataclass
class Work:
    submitted: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    dropped: int = 0
    retries: int = 0

    def __call__(self) -> Work:
        return self

    async def go(self, *, jobs: int, seconds: float) -> None:
        """End one job after another, evenly; every tenth fails, after a retry."""
        self.submitted = max(self.submitted, jobs)
        for n in range(1, jobs + 1):
            await trio.sleep(seconds / jobs)
            self.succeeded += n % 10 != 0
            self.failed += n % 10 == 0
            self.retries += n % 10 == 0


async def show(work: Work, body: Callable[[], object], progress: object = True, total: float | None = None) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress_task(progress, work, name="push", total=total))
        await body()  # type: ignore[misc]
        nursery.cancel_scope.cancel()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "trio_orchestrator")
    return caplog


class Terminal:
    """A pseudo-terminal in the place of stderr, whose other end is read by a thread. To be made in the test itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._master, slave = os.openpty()
        self._chunks: list[bytes] = []
        self._stderr = os.fdopen(slave, "w")
        monkeypatch.setattr(sys, "stderr", self._stderr)
        for name, value in (("TERM", "xterm"), ("COLUMNS", "100"), ("LINES", "20")):
            monkeypatch.setenv(name, value)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._master, 4096):
                self._chunks.append(chunk)
        except OSError:  # how Linux says that the other end is closed
            return

    def frames(self) -> list[str]:
        """Close it, and return what was drawn, without the escape sequences."""
        self._stderr.close()
        self._reader.join()
        os.close(self._master)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(self._chunks).decode())
        return [frame.strip() for frame in re.split(r"[\r\n]+", text) if frame.strip()]


# ------------------------------------------------------------------------------------------------ log lines


async def test_without_a_terminal_a_line_every_five_seconds_and_one_at_the_end(
    lines: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    work = Work()
    await show(work, lambda: work.go(jobs=40, seconds=12))
    assert lines.messages == [
        "push: 16/40, 3.2/s, 1 failed, 1 retries, ETA 0:08",
        "push: 33/40, 3.3/s, 3 failed, 3 retries, ETA 0:02",
        "push: 40/40, 3.3/s, 4 failed, 4 retries, took 0:12",
    ]
    assert {(record.name, record.levelname) for record in lines.records} == {("trio_orchestrator", "INFO")}


async def test_an_idle_hour_adds_no_lines(lines: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    work = Work(submitted=4)
    await show(work, partial(trio.sleep, 3600))
    assert lines.messages == [
        "push: 0/4, 0.0/s, 0 failed, 0 retries, ETA -",
        "push: 0/4, 0.0/s, 0 failed, 0 retries, took 1:00:00",
    ]


async def test_the_final_state_is_shown_when_all_is_cancelled_at_once(
    lines: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    work = Work(submitted=5, succeeded=1, cancelled=3, dropped=1)
    await show(work, trio.lowlevel.checkpoint)
    assert lines.messages == ["push: 5/5, 0.0/s, 0 failed, 0 retries, 3 cancelled, 1 dropped, took 0:00"]


async def test_the_final_state_is_shown_when_the_block_raises(
    lines: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    work = Work(submitted=2, failed=1)

    async def fail() -> None:
        await trio.sleep(2)
        raise KeyError("x")

    with pytest.RaisesGroup(KeyError):
        await show(work, fail)
    assert lines.messages == ["push: 1/2, 0.5/s, 1 failed, 0 retries, took 0:02"]


async def test_a_total_that_is_known_and_one_that_has_no_end(
    lines: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    for total in (100, math.inf, 1):
        work = Work()
        await show(work, lambda work=work: work.go(jobs=10, seconds=5), total=total)  # type: ignore[misc]
    assert [message.split(",")[0] for message in lines.messages if "took" in message] == [
        "push: 10/100",
        "push: 10/inf",
        "push: 10/10",
    ]


async def test_an_unreadable_source_is_logged_once_and_hurts_nobody(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    def broken() -> Counts:
        if trio.current_time() > 1:
            raise RuntimeError("no counts")
        return Work()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress_task(True, broken, name="push"))
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


# -------------------------------------------------------------------------------------------------- the bar


async def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    terminal = Terminal(monkeypatch)
    work = Work()
    await show(work, lambda: work.go(jobs=40, seconds=12))
    frames = terminal.frames()
    assert len(frames) > 100  # ten a second, by Trio's clock
    assert any("20/40 push: 3.3/s, 2 failed, 2 retries, ETA 0:06" in frame for frame in frames)
    assert frames[-1].endswith("40/40 push: 3.3/s, 4 failed, 4 retries, took 0:12")
    assert "━" in frames[-1]


async def test_a_bar_writes_names_as_they_are(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    terminal = Terminal(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress_task(True, Work(submitted=1), name="push[red]"))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert "push[red]: 0.0/s" in terminal.frames()[-1]


async def test_a_bar_without_a_known_total(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    terminal = Terminal(monkeypatch)
    work = Work()
    await show(work, lambda: work.go(jobs=4, seconds=1), total=math.inf)
    assert re.search(r"4/\? push: 4.0/s", terminal.frames()[-1])


async def test_without_rich_a_terminal_gets_lines(
    lines: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich.markup", None)
    work = Work()
    await show(work, lambda: work.go(jobs=10, seconds=6))
    assert terminal.frames() == []
    assert lines.messages[-1] == "push: 10/10, 1.7/s, 1 failed, 1 retries, took 0:06"


async def test_a_terminal_that_goes_away_hurts_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    terminal = Terminal(monkeypatch)
    work = Work()

    async def hang_up() -> None:
        await work.go(jobs=4, seconds=1)
        terminal.frames()
        await work.go(jobs=4, seconds=1)

    await show(work, hang_up)
    assert work.succeeded == 8
    assert {record.levelname for record in caplog.records} == {"ERROR"}


async def test_a_progress_of_ones_own_gets_a_bar_and_is_left_to_its_owner(autojump_clock: MockClock) -> None:
    work = Work()
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with Progress(console=console, auto_refresh=False) as progress:
        await show(work, lambda: work.go(jobs=10, seconds=2), progress)
        assert progress.live.is_started
        (task,) = progress.tasks
        assert (task.completed, task.total) == (10, 10)
        assert task.description == "push: 5.0/s, 1 failed, 1 retries, took 0:02"


# -------------------------------------------------------------------------------------------------- details


async def test_no_progress_is_a_task_that_returns() -> None:
    with trio.testing.assert_checkpoints():
        await progress_task(False, Work(), name="push")()


def test_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^progress must be a bool or a rich.progress.Progress, got 'yes'$"):
        progress_task("yes", Work(), name="push")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (0.7, "0:01"),
        (59.2, "0:59"),
        (60, "1:00"),
        (3599.8, "1:00:00"),
        (90061, "25:01:01"),
        (math.inf, "-"),
    ],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_the_meter_without_any_time() -> None:
    meter = Meter(now=5)
    assert meter.read(Work(submitted=3, succeeded=3), 5) == "0.0/s, 0 failed, 0 retries, ETA 0:00"
    assert (meter.done, meter.total) == (3, 3)
    assert meter.close(Work(submitted=3, succeeded=3), 5) == "0.0/s, 0 failed, 0 retries, took 0:00"
