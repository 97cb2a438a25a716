"""A file of JSON lines that survives a kill: what the harvest's client and its server each keep their books in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Append records to a file, one JSON line each; opened again, it goes on where it stopped.

    A line is written and flushed in one synchronous call, so no other Trio task can get in between. It blocks the
    event loop for some microseconds, which is less than handing it to a thread would cost. Flushed, not fsynced: it
    survives the death of the process, not of the machine.
    """

    def __init__(self, path: Path) -> None:
        path.touch()
        mend(path)
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def append(self, **record: Any) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole records of a journal; a torn last line is no record, and neither is a missing file."""
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.endswith("\n"))


def mend(path: Path) -> None:
    """Cut off a last line that a killed writer left without its end; the next record would be glued to it."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
