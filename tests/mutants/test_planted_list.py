"""The planted bugs fit the code of today, their tests exist, and nothing but a test's own failure counts as a catch.

`python -m tests.mutants` runs them.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

import pytest

from tests.mutants.bug import ROOT, Bug, Hunk, Stale, bugs
from tests.mutants.workshop import Run

BUGS = bugs()
each = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
TWELVE = {
    "a-gate-never-opens",
    "a-key-leaks",
    "cleared-waiter-hangs",
    "context-leaks-between-jobs",
    "deadline-not-skipped",
    "limiter-over-granted",
    "retry-counted-as-idle",
    "retry-loses-its-order",
    "slot-freed-too-early",
    "stray-cancelled-ends-the-queue",
    "token-lost-on-cancel",
    "unseen-failure-lost",
}


def test_the_twelve_that_must_be_there_are_there() -> None:
    assert {bug.name for bug in BUGS} >= TWELVE


@each
def test_the_patch_fits_exactly_once_and_leaves_python(bug: Bug) -> None:
    assert bug.text.endswith(".")
    for path, text in bug.patched(ROOT).items():
        assert path.is_relative_to(ROOT / "trio_orchestrator")
        assert text != path.read_text(encoding="utf-8")
        ast.parse(text)


@cache
def _module(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@each
def test_its_test_exists(bug: Bug) -> None:
    file, *classes, test = bug.test.partition("[")[0].split("::")
    place: ast.Module | ast.ClassDef = _module(file)
    for name in classes:
        place = next(node for node in place.body if isinstance(node, ast.ClassDef) and node.name == name)
    functions = (node for node in place.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    assert test in {function.name for function in functions}


@pytest.mark.parametrize("source", ["", "a\nb", "b\nc\na\nb\nc\n", "a\n b\nc\n"])
def test_what_stands_there_not_once_is_stale(source: str) -> None:
    with pytest.raises(Stale):
        Hunk("file", ("b", "c"), ("d",)).apply(source)


def test_a_hunk_replaces_its_lines_wherever_they_are() -> None:
    assert Hunk("file", ("b", "c"), ("d",)).apply("c\nb\nc\nb\n") == "c\nd\nb\n"


def notes(test: str = "tests/test_a.py::test_it[1]", phase: str = "call", message: str = "assert 1 == 2") -> Any:
    return {"collected": 1, "failures": [{"test": test, "phase": phase, "message": message}]}


def test_a_failure_of_the_named_test_itself_is_a_catch() -> None:
    assert Run(1, "", notes()).caught("tests/test_a.py::test_it") == "assert 1 == 2"


@pytest.mark.parametrize(
    "run",
    [
        Run(0, "", {"collected": 1, "failures": []}),
        Run(1, "the library cannot be imported", None),
        Run(1, "something skipped", {"collected": 1, "failures": []}),
        Run(2, "not collected", notes(phase="collect")),
        Run(1, "", notes(phase="setup")),
        Run(1, "", notes(test="tests/test_a.py::test_it_too")),
        Run(1, "", notes(message="NameError: name 'x' is not defined")),
    ],
    ids=lambda run: f"{run.code} {run.output} {run.notes and run.notes['failures']}",
)
def test_nothing_else_is_a_catch(run: Run) -> None:
    assert run.caught("tests/test_a.py::test_it") is None


@pytest.mark.parametrize("run", [Run(5, "", None), Run(0, "", {"collected": 0, "failures": []}), Run(1, "", notes())])
def test_no_test_at_all_is_not_green(run: Run) -> None:
    assert not run.green
