"""Rules of the whole suite: nothing is skipped silently, and Hypothesis runs without real-time deadlines."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None, print_blob=True)
if profile := os.environ.get("HYPOTHESIS_PROFILE"):
    settings.load_profile(profile)
elif settings.get_current_profile_name() != "ci":  # Hypothesis has loaded that one by itself if CI is set
    settings.load_profile("default")

_evaded: list[str] = []
_collected_for: Path | None = None


def evades(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Return whether a test was skipped, expected to fail (whether it did or not), or run again."""
    return report.skipped or hasattr(report, "wasxfail") or report.outcome not in ("passed", "failed")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if evades(report):
        _evaded.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if evades(report):
        _evaded.append(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector off while thousands of tests are made, which are all here to stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep the collector, at each new file, from looking again and again at what is older than the file's tests.

    It looks at them once, here: what is garbage by now is found. Else a fifth of the run would go into that.
    """
    global _collected_for
    if item.path != _collected_for:
        _collected_for = item.path
        gc.collect()
        gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.unfreeze()
    gc.collect()  # a last look at everything; what pytest finds then is in the report, too
    gc.freeze()  # pytest looks five times more
    if _evaded:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for nodeid in _evaded:
        terminalreporter.write_line(f"skipped, xfailed, xpassed or run again, so the run fails: {nodeid}", red=True)
