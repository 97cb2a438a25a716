"""The property tests, again and again with fresh seeds: ``python -m benchmarks explore --minutes 30 tests/queue``."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time

from benchmarks.measure import HERE

PROPERTIES = ("-m", "hypothesis", "-q", "-p", "no:cacheprovider", "-o", "timeout=0")
"""Only tests that Hypothesis drives, without our time-out for one test: the profile ``explore`` runs them for long."""
NOTHING_COLLECTED = 5


def run(minutes: float, words: list[str]) -> int:
    """Run pytest until the time is over; print each failing seed; return 1 if there was one.

    Args:
        minutes: A run that is still going when they are over is stopped, and counts for nothing.
        words: Handed to pytest; a path among them replaces ``tests``.
    """
    deadline = time.monotonic() + minutes * 60
    runs = failures = 0
    while (code := _one_run(words or ["tests"], deadline)) is not None:
        if code == NOTHING_COLLECTED:
            print("no property test was collected", file=sys.stderr)
            return code
        runs += 1
        failures += code != 0
        print(f"runs {runs}, failures {failures}", flush=True)
    return int(failures > 0)


def _one_run(words: list[str], deadline: float) -> int | None:
    """Return pytest's exit code, or None if there was no time left for it to end."""
    seed = str(secrets.randbelow(2**32))
    test = [sys.executable, "-m", "pytest", *PROPERTIES, f"--hypothesis-seed={seed}", *words]
    try:
        done = subprocess.run(
            test,
            cwd=HERE.parent,
            env=os.environ | {"HYPOTHESIS_PROFILE": "explore"},
            timeout=max(0.0, deadline - time.monotonic()),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        print(f"{done.stdout}\nfailed: HYPOTHESIS_PROFILE=explore {' '.join(test)}", flush=True)
    return done.returncode
