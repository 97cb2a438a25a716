"""How much memory this process holds, now and at most."""

from __future__ import annotations

import importlib
import os
import sys


def resident() -> int:
    """Return the bytes resident now."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return int(importlib.import_module("psutil").Process().memory_info().rss)


def peak() -> int:
    """Return the most bytes that were resident at once.

    Not ``ru_maxrss`` on Linux: it survives ``exec``, so that a child shows the peak of its parent.
    """
    if sys.platform == "linux":
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
