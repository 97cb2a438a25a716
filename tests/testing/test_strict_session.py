from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import evades

CONFTEST = Path(__file__).parents[1] / "conftest.py"


EVASIONS = """
@pytest.mark.skip
def test_skipped(): pass

@pytest.mark.xfail
def test_xfailed(): assert False

@pytest.mark.xfail(strict=False)
def test_xpassed(): pass
"""


def run_session(directory: Path, **sources: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, directory)
    for name, source in sources.items():
        (directory / f"{name}.py").write_text(f"import pytest\n\n{source}\n")
    plugins = ["-p", "no:cacheprovider", "-p", "no:trio", "-p", "no:sybil"]
    command = [sys.executable, "-m", "pytest", "-q", f"--rootdir={directory}", "-c", os.devnull, *plugins]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=50)


def test_a_session_that_only_passes_succeeds(tmp_path: Path) -> None:
    assert run_session(tmp_path, test_a="def test_it(): pass").returncode == pytest.ExitCode.OK


def test_a_session_that_evades_a_test_fails_and_names_it(tmp_path: Path) -> None:
    run = run_session(tmp_path, test_a=EVASIONS, test_b="pytest.skip(allow_module_level=True)")
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    named = {line.rpartition(": ")[2] for line in run.stdout.splitlines() if "so the run fails" in line}
    assert named == {"test_a.py::test_skipped", "test_a.py::test_xfailed", "test_a.py::test_xpassed", "test_b.py"}


def test_a_rerun_counts_as_evasion() -> None:
    def report(outcome: str) -> pytest.TestReport:
        return pytest.TestReport("test_it", ("", 0, ""), {}, outcome, None, "call")  # type: ignore[arg-type]

    assert [evades(report(outcome)) for outcome in ("passed", "failed", "rerun")] == [False, False, True]
