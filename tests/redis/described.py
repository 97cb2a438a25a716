"""What a server says of its commands."""

from __future__ import annotations

from typing import Any


def flat(commands: list[Any]) -> dict[str, list[Any]]:
    """The entries of COMMAND by name, subcommands as "CONFIG GET" in place of their container."""
    entries: dict[str, list[Any]] = {}
    for entry in commands:
        children = entry[9] if len(entry) > 9 else []
        entries |= {child[0].replace("|", " ").upper(): child for child in children}
        if not children or entry[0] == "command":
            entries[entry[0].upper()] = entry
    return entries
