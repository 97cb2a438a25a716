"""What scripts write into docs/policies.md: text between `<!-- name: ... -->` and `<!-- end of name -->`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).with_name("policies.md")


def written(page: str, name: str) -> str:
    """Return what stands between the two comments of a name."""
    return _between(page, name)[2]


def rewritten(page: str, name: str, text: str) -> str:
    """Return the page with other text between them."""
    found = _between(page, name)
    return f"{page[: found.start(2)]}{text}{page[found.end(2) :]}"


def insert(name: str, text: str) -> None:
    """Put text between them, in the file."""
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), name, text), encoding="utf-8")


def _between(page: str, name: str) -> re.Match[str]:
    found = re.search(rf"(<!-- {name}: [^\n]*-->\n\n)(.*?)\n\n<!-- end of {name} -->", page, re.DOTALL)
    if found is None:
        raise ValueError(f"name must be that of two comments on the page, got {name!r}")
    return found
