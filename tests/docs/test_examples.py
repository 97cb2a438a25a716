"""The Python blocks of README.md and docs/ run, each page from top to bottom in one namespace."""

from __future__ import annotations

from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITHOUT_EXAMPLES = {"docs/architecture.md", "docs/performance.md"}
EXAMPLES = Sybil([PythonCodeBlockParser()], path=str(ROOT))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_examples_of(page: Path) -> None:
    examples = list(EXAMPLES.parse(page).examples())
    for example in examples:
        example.evaluate()
    assert (not examples) == (name_of(page) in WITHOUT_EXAMPLES)
