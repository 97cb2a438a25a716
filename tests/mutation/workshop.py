"""Where a mutant meets the tests of its module: a forked child, in which it stands in for the module.

The parent has imported everything but the library, and has compiled that and its tests, so a child begins with the
first test. All mutants of a run are judged by what the files held when it began, and by the same Hypothesis examples.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryFile
from types import CodeType, ModuleType
from typing import IO, Any, final

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutation.mutant import ROOT, Mutant

PROFILE = "mutation"
"""The Hypothesis profile: the same few examples each time, and none made smaller."""
WORKERS = 2

settings.register_profile(
    PROFILE,
    max_examples=50,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
_OURS = ("trio_orchestrator", "tests")
_WARM = ("hypothesis.stateful", "pytest_timeout", "pytest_trio.plugin", "trio.testing", "trio_orchestrator.testing")
_KEPT = ("tests", "tests.mutation", "trio_orchestrator.algorithms.chance")  # Hypothesis has been told of that `Random`
_WITHOUT = ("anyio", "cacheprovider", "hypothesispytest", "sybil")
_OPTIONS = ["-q", "-x", "--assert=plain", "--tb=no", *(f"-pno:{plugin}" for plugin in _WITHOUT)]
_LEAST_SECONDS = 10.0  # of processor time, for a mutant that makes a loop endless
_PATIENCE = 10  # times as long by the clock: other work may be going on
_MEMORY = 2 << 30
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)


@final
@dataclass(frozen=True)
class Verdict:
    """What became of one mutant, or of the unchanged module."""

    mutant: Mutant | None
    survived: bool
    seconds: float
    output: str


class Workshop:
    """The tests of one module, ready to run. It is not reentrant.

    Args:
        module: A module of `algorithms/`.
        tests: The files of its tests, from the root.
    """

    def __init__(self, module: str, tests: Iterable[str]) -> None:
        self.module = module
        self._tests = tuple(tests)
        self._codes = _compiled()
        self._seconds = _LEAST_SECONDS
        self._kills: Counter[str] = Counter()  # by test: those that killed most go first
        for name in _WARM:
            import_module(name)
        gc.freeze()  # the children look for garbage among their own things only

    def is_green(self) -> Verdict:
        """Run the tests on the module as it is; that also tells how long a mutant may take."""
        verdict = next(self.judge([None]))
        self._seconds = _LEAST_SECONDS + 4 * verdict.seconds
        return verdict

    def judge(self, mutants: Iterable[Mutant | None]) -> Iterator[Verdict]:
        """Yield a verdict on each, as they come; `WORKERS` at a time."""
        todo = iter(mutants)
        out: dict[int, _Trial] = {}
        while True:
            while len(out) < WORKERS and (mutant := next(todo, _NOTHING)) is not _NOTHING:
                trial = _Trial(self, mutant)
                out[trial.process.sentinel] = trial
            if not out:
                return
            wait(list(out), timeout=1)
            for sentinel in [sentinel for sentinel, trial in out.items() if trial.is_over(self._seconds * _PATIENCE)]:
                verdict = out.pop(sentinel).verdict()
                self._kills.update(_FAILED.findall(verdict.output))
                yield verdict

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests first that are likely to end the trial."""
        items.sort(key=lambda item: -self._kills[item.nodeid])

    def work(self, mutant: Mutant | None, output: IO[bytes]) -> None:
        """Run the tests, and exit: in the child."""
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        seconds = int(self._seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        path = ROOT / "trio_orchestrator" / "algorithms" / f"{self.module}.py"
        codes = self._codes if mutant is None else self._codes | {path: mutant.code()}
        _purge(f"trio_orchestrator.algorithms.{self.module}")
        sys.meta_path.insert(0, _Finder(codes))
        random.seed(0)
        code = pytest.main([*_OPTIONS, f"--timeout={2 * seconds}", *self._tests], [self])
        sys.stdout.flush()
        os._exit(code)


_NOTHING: Any = object()


@final
class _Trial:
    def __init__(self, workshop: Workshop, mutant: Mutant | None) -> None:
        self._mutant = mutant
        self._output = TemporaryFile()
        self._begin = time.monotonic()
        self.process: BaseProcess = multiprocessing.get_context("fork").Process(
            target=workshop.work, args=(mutant, self._output)
        )
        self.process.start()

    def is_over(self, seconds: float) -> bool:
        """Return whether it has ended; end it if it takes longer than that."""
        if self.process.is_alive() and time.monotonic() - self._begin > seconds:
            self.process.kill()
            self.process.join()
        return not self.process.is_alive()

    def verdict(self) -> Verdict:
        self.process.join()
        self._output.seek(0)
        with self._output as output:
            text = output.read().decode(errors="replace")
        return Verdict(self._mutant, self.process.exitcode == 0, time.monotonic() - self._begin, text)


@final
class _Finder(MetaPathFinder):
    """Finds the library and the tests in what was compiled."""

    def __init__(self, codes: dict[Path, CodeType]) -> None:
        self._codes = codes

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        place = ROOT.joinpath(*name.split("."))
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file in self._codes:
                return spec_from_file_location(name, file, loader=_Loader(name, str(file), self._codes[file]))
        return None


@final
class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code


@cache
def _compiled() -> dict[Path, CodeType]:
    files = [file for part in _OURS for file in (ROOT / part).rglob("*.py")]
    return {file: compile(file.read_text(encoding="utf-8"), file, "exec") for file in files}


def _purge(module: str) -> None:
    """Forget everything that may have the module, so that it is imported anew."""
    for name in list(sys.modules):
        if name.partition(".")[0] in _OURS and (name == module or name not in _KEPT):
            del sys.modules[name]
