"""The child that measures an import; it must not load Trio by itself: ``python -m benchmarks.importing``."""

from __future__ import annotations

import json
import sys
import time
from types import ModuleType

from benchmarks.memory import resident

STRANGERS = ("redis", "rich")
"""What importing the library must not load."""


def names_resolved(module: ModuleType) -> None:
    """Load what a user of the queue loads: the package resolves its names on first use."""
    for name in ("open_task_queue", "map_all", "Retry"):
        getattr(module, name)


def reading() -> dict[str, float]:
    """Import Trio, then the library; return CPU milliseconds of each, MiB beyond Trio, and the strangers loaded."""
    start = time.process_time()
    __import__("trio")
    trio_done, before = time.process_time(), resident()
    names_resolved(__import__("trio_orchestrator"))
    end = time.process_time()
    return {
        "trio": (trio_done - start) * 1e3,
        "ours": (end - trio_done) * 1e3,
        "mib": (resident() - before) / 2**20,
        "strangers": sum(name in sys.modules for name in STRANGERS),
    }


if __name__ == "__main__":
    print(json.dumps(reading()))
