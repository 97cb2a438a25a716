"""Print what the ready-made stacks consist of: python docs/explain.py (from the root).

With --write it goes into docs/policies.md, too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.page import insert
from trio_orchestrator import Stack


def text() -> str:
    """Return the account of each ready-made stack, under its name; objects without their addresses."""
    ready = {"http": Stack.http(), "aws": Stack.aws(), "redis": Stack.redis()}
    accounts = "\n\n".join(f"Stack.{name}()\n{stack.explain()}" for name, stack in ready.items())
    return re.sub(r" object at 0x[0-9a-f]+", "", accounts)


def block() -> str:
    """Return it as it stands on the page."""
    return f"```text\n{text()}\n```"


if __name__ == "__main__":
    sys.stdout.write(f"{text()}\n")
    if "--write" in sys.argv[1:]:
        insert("explain", block())
