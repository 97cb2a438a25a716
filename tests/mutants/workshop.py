"""A copy of the library and its tests, in which bugs are planted, tested and taken out again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, final

from tests.mutants import guard
from tests.mutants.bug import ROOT, Bug, Stale

CAUGHT, SURVIVED, STALE, BROKEN = "caught", "SURVIVED", "STALE", "BROKEN"

_PARTS = ("trio_orchestrator", "tests", "pyproject.toml")
_SECONDS_A_TEST = 20  # a bug may make a loop that spins
_SECONDS_A_RUN = 120
_OPTIONS = (
    "-q",
    "-x",
    "--tb=short",
    f"--timeout={_SECONDS_A_TEST}",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:sybil",
    "-p",
    guard.__name__,
)
_ACCIDENTS = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError")


@final
@dataclass(frozen=True)
class Verdict:
    """What became of one bug."""

    bug: Bug
    word: str
    """`caught`; `SURVIVED`: its test passed; `STALE`: it does not fit the code; `BROKEN`: something else went wrong."""
    seconds: float
    why: str
    """How the test failed; or what else there is to say."""


@final
@dataclass(frozen=True)
class Run:
    """One run of pytest."""

    code: int
    output: str
    notes: dict[str, Any] | None

    @property
    def green(self) -> bool:
        """Whether there were tests, and all of them passed."""
        return self.code == 0 and self.notes is not None and self.notes["collected"] > 0

    def caught(self, test: str) -> str | None:
        """Return how `test` failed (any of its parameters); None if it did not, or not in its own body."""
        if self.code != 1 or self.notes is None or not self.notes["failures"]:
            return None
        failure = self.notes["failures"][0]
        message: str = failure["message"]
        own = failure["phase"] == "call" and failure["test"].partition("[")[0] == test.partition("[")[0]
        return message if own and not message.startswith(_ACCIDENTS) else None


@final
class Workshop:
    """One copy. Bugs are planted in it one after another; what was compiled for the rest of it stays.

    Args:
        root: Where the copy shall be.
        compiled: Where compiled code is kept; workshops may share it.
    """

    def __init__(self, root: Path, compiled: Path) -> None:
        self.root = root
        self._compiled = compiled
        self._moments = count(int(time.time()))
        for part in _PARTS:
            source, copy = ROOT / part, root / part
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy)

    def run(self, tests: Iterable[str]) -> Run:
        """Run tests by their ids, up to the first failure."""
        notes = self.root / "notes.json"
        notes.unlink(missing_ok=True)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # most of the time of a run would go there
        environ |= {"PYTHONPYCACHEPREFIX": str(self._compiled), "PYTHONPATH": str(self.root)}
        environ |= {"HYPOTHESIS_PROFILE": guard.PROFILE, guard.NOTES: str(notes)}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, *tests],
            cwd=self.root,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_SECONDS_A_RUN,
        )
        return Run(done.returncode, done.stdout, json.loads(notes.read_text()) if notes.exists() else None)

    def judge(self, bug: Bug) -> Verdict:
        """Plant a bug, and see whether its test notices."""
        begin = time.monotonic()
        try:
            with self._planted(bug):
                word, why = _verdict(self.run([bug.test]), bug)
        except Stale as error:
            word, why = STALE, str(error)
        except subprocess.TimeoutExpired as error:
            word, why = BROKEN, str(error)
        return Verdict(bug, word, time.monotonic() - begin, why)

    @contextmanager
    def _planted(self, bug: Bug) -> Iterator[None]:
        texts = bug.patched(self.root)
        originals = {path: path.read_text(encoding="utf-8") for path in texts}
        self._write(texts)
        try:
            yield
        finally:
            self._write(originals)

    def _write(self, texts: dict[Path, str]) -> None:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
            moment = next(self._moments)  # its own, to the second: Python tells by it what has to be compiled
            os.utime(path, (moment, moment))


def _verdict(run: Run, bug: Bug) -> tuple[str, str]:
    if run.green:
        return SURVIVED, f"{bug.test} passes"
    how = run.caught(bug.test)
    return (BROKEN, f"pytest ended with {run.code}:\n{run.output}") if how is None else (CAUGHT, how)
