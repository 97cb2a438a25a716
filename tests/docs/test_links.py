"""Links between the pages lead somewhere, and what can be copied is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@pytest.mark.parametrize(
    "line",
    [
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[examples]' && .venv/bin/python examples/harvest.py",
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest",
    ],
)
def test_the_lines_to_copy_stand_alone(line: str) -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").splitlines().count(line) == 1
