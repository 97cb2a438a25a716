"""Children of one process must not all draw the same jitter."""

from __future__ import annotations

import subprocess
import sys

_FORKS = """
import os
from trio_orchestrator.algorithms.chance import CHANCE

for _ in range(3):
    if not os.fork():
        print(CHANCE.random(), flush=True)
        os._exit(0)
    os.wait()
print(CHANCE.random())
"""


def test_a_forked_child_draws_for_itself() -> None:
    result = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, check=True, timeout=30)
    assert len(set(result.stdout.split())) == 4
