"""A planted bug: a patch of the library, and the test that must notice it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).parent / "planted"


class Stale(Exception):
    """The code has moved away from under a patch: what it replaces does not stand there exactly once."""


@final
@dataclass(frozen=True)
class Hunk:
    """Lines of one file, before and after."""

    file: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    def apply(self, source: str) -> str:
        """Replace the one place where the lines stand; without fuzz, wherever it is."""
        lines = source.splitlines()
        length = len(self.before)
        places = [at for at in range(len(lines) - length + 1) if tuple(lines[at : at + length]) == self.before]
        if len(places) != 1:
            raise Stale(f"{self.file} has {len(places)} places for this, and not one:\n" + "\n".join(self.before))
        lines[places[0] : places[0] + length] = self.after
        return "\n".join(lines) + "\n"


@final
@dataclass(frozen=True)
class Bug:
    """What `planted/<name>.patch` says: a sentence, a line `Test: <id>`, and a unified diff."""

    name: str
    text: str
    test: str
    hunks: tuple[Hunk, ...]

    @classmethod
    def read(cls, path: Path) -> Bug:
        """Read a patch file. The line numbers of its hunks are not looked at."""
        head, _, diff = path.read_text(encoding="utf-8").partition("\n--- ")
        text, _, test = head.partition("\nTest: ")
        return cls(path.stem, " ".join(text.split()), test.strip(), tuple(_hunks("--- " + diff)))

    def patched(self, root: Path) -> dict[Path, str]:
        """Return the new text of each file below `root` that the bug changes.

        Raises:
            Stale: The patch does not fit, or is empty.
        """
        if not self.hunks:
            raise Stale(f"{self.name}.patch has no hunk")
        texts: dict[Path, str] = {}
        for hunk in self.hunks:
            path = root / hunk.file
            texts[path] = hunk.apply(texts.get(path) or path.read_text(encoding="utf-8"))
        return texts


def _hunks(diff: str) -> Iterator[Hunk]:
    for part in ("\n" + diff).split("\n--- ")[1:]:
        header, *bodies = part.split("\n@@")
        file = header.rpartition("\n+++ b/")[2].strip()
        for body in bodies:
            lines = body.splitlines()[1:]  # behind the rest of the line of the @@
            yield Hunk(file, tuple(_side(lines, "-")), tuple(_side(lines, "+")))


def _side(lines: list[str], sign: str) -> Iterator[str]:
    for line in lines:
        if line[:1] in ("", " ", sign):  # a blank line of context may have lost its blank
            yield line[1:]


def bugs() -> list[Bug]:
    """Return all planted bugs, by name."""
    return [Bug.read(path) for path in sorted(PLANTED.glob("*.patch"))]
