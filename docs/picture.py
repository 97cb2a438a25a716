"""Make docs/harvest.svg, the example as it looks on a terminal: python docs/picture.py (from the root)."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
WIDTH = 100
COMMAND = ["examples/harvest.py"]
EARLIER_FRAME = re.compile(r"^.*(?:\r|\x1b\[2K)", re.DOTALL)
CURSOR = re.compile(r"\x1b\[\??[0-9;]*[A-HJKSTfhln]")


def run(command: list[str]) -> str:
    """Run a program on a pseudo-terminal, visibly, and return what it has written."""
    chunks: list[bytes] = []

    def read(fd: int) -> bytes:
        chunks.append(os.read(fd, 4096))
        return chunks[-1]

    os.environ.update(TERM="xterm-256color", COLUMNS=str(WIDTH), LINES="30")
    if pty.spawn([sys.executable, *command], read):
        raise SystemExit("the example has failed")
    return b"".join(chunks).decode()


def screen(output: str) -> list[str]:
    """Return the lines as they stand there in the end: of a bar only its last frame."""
    lines = [EARLIER_FRAME.sub("", line) for line in output.replace("\r\n", "\n").split("\n")]
    return [CURSOR.sub("", line).rstrip() for line in lines]


def main() -> None:
    """Run the example in a folder of its own, and draw it."""
    with tempfile.TemporaryDirectory() as state:
        lines = [f"$ python {' '.join(COMMAND)}", *screen(run([str(ROOT / COMMAND[0]), "--state", state]))]
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi("\n".join(lines).strip()))
    console.save_svg(str(ROOT / "docs" / "harvest.svg"), title="ten thousand items, one fallible service")


if __name__ == "__main__":
    main()
