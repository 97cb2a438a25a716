"""The lists of public bug reports name tests that exist, and are collected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
REPORT: Final = re.compile(r"[\w.-]+/[\w.-]+#[1-9]\d*")
LINES: Final = [
    (path.name, line)
    for path in sorted((ROOT / "tests" / "reports").glob("*.txt"))
    for line in path.read_text(encoding="utf-8").splitlines()
]


def _parts(line: str) -> tuple[str, Path, str]:
    report, _, test = line.partition(" ")
    path, _, name = test.partition("::")
    return report, Path(path), name


def _tests_of(path: Path) -> Iterator[str]:
    """Yield the names of the tests in a file that pytest collects, those in classes too."""
    module = import_module(".".join(path.with_suffix("").parts))
    for name, value in vars(module).items():
        if name.startswith("test") and callable(value):
            yield name
        elif name.startswith("Test") and isinstance(value, type):
            yield from (f"{name}::{method}" for method in dir(value) if method.startswith("test"))


@pytest.mark.parametrize(("source", "line"), LINES, ids=[line.partition(" ")[0] for _, line in LINES])
def test_a_listed_report_has_its_test(source: str, line: str) -> None:
    report, path, name = _parts(line)
    assert REPORT.fullmatch(report), f"{source}: {report!r} is not owner/repo#number"
    assert path.name.startswith("test_"), f"{source}: pytest collects nothing from {path}"
    assert (ROOT / path).is_file(), f"{source}: there is no {path}"
    assert name in _tests_of(path), f"{source}: {path} has no {name}"
    assert report.partition("#")[2] in name, f"{source}: {name} does not tell the number of its report"


def test_no_report_is_listed_twice_with_the_same_test() -> None:
    lines = [line for _, line in LINES]
    assert len(lines) == len(set(lines)) > 40


def test_what_was_collected_here_agrees_with_what_is_listed(request: pytest.FixtureRequest) -> None:
    """Where a file of the lists was collected in this run, each of its listed tests was."""
    collected = {item.nodeid.partition("[")[0] for item in request.session.items}
    files = {nodeid.partition("::")[0] for nodeid in collected}
    whole = not (
        request.config.option.keyword or request.config.option.markexpr or getattr(request.config.option, "lf", False)
    )
    narrowed = any("::" in argument for argument in request.config.invocation_params.args)
    if not whole or narrowed:  # a part of a file was asked for
        return
    for _, line in LINES:
        _, path, name = _parts(line)
        assert path.as_posix() not in files or f"{path.as_posix()}::{name}" in collected, line
