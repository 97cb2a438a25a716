"""The pytest plugin of a run in a workshop: it makes sure that the copy is what runs, and notes what failed, and how.

An exit code alone would not do: a library that cannot be imported any more fails every test, and no test has caught it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

import trio_orchestrator

NOTES = "MUTANTS_NOTES"
"""The variable that names the file for the notes."""
PROFILE = "planted"
"""The Hypothesis profile: the same examples each time, and none made smaller."""

settings.register_profile(
    PROFILE, deadline=None, database=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
_failures: list[dict[str, str]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test another copy of the library, such as an installed one."""
    found = Path(trio_orchestrator.__file__).resolve().parent
    if found.parent != Path.cwd().resolve():
        raise pytest.UsageError(f"trio_orchestrator was imported from {found}, and not from {Path.cwd()}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failure, and in which phase of the test it was."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = str(report.longrepr) if crash is None else crash.message
        _failures.append({"test": report.nodeid, "phase": str(report.when), "message": text.strip()})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the notes."""
    notes = {"library": trio_orchestrator.__file__, "collected": session.testscollected, "failures": _failures}
    Path(os.environ[NOTES]).write_text(json.dumps(notes), encoding="utf-8")
