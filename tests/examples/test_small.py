from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(example: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)


def test_quickstart_fetches_all_and_shows_the_retries() -> None:
    done = run("quickstart.py")
    *fetched, last = done.stdout.splitlines()
    assert sorted(fetched) == [f"fetched {number}" for number in range(10)]
    assert last == "all done"
    for line in done.stderr.splitlines():
        assert re.fullmatch(r"attempt \d/10 of 'fetch' failed, next in \d\.\d\d s: ConnectionError\('.*'\)", line)


def classic(seed: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    main = runpy.run_path(str(EXAMPLES / "classic.py"))["main"]
    trio.run(main, seed, clock=trio.testing.MockClock(autojump_threshold=0))
    return capsys.readouterr().out.splitlines()


def check_classic(output: list[str]) -> None:
    outcomes, figures = output[:5], dict(line.split() for line in output[5:])
    assert sorted(line.split(":")[0] for line in outcomes) == [f"item {number}" for number in range(101, 106)]
    attempts = [int(re.findall(r"\(attempts: (\d)\)", line)[0]) for line in outcomes]
    failed = [line for line in outcomes if "failed for good" in line]
    assert all(line.endswith("(attempts: 4)") for line in failed)
    assert figures == {
        "submitted": "5",
        "succeeded": f"{5 - len(failed)}",
        "failed": f"{len(failed)}",
        "retries": f"{sum(attempts) - 5}",
        "waiting": "0",
        "running": "0",
        "retry_scheduled": "0",
    }


def test_classic_ends_when_the_last_retry_has() -> None:
    check_classic(run("classic.py", "--seed=1").stdout.splitlines())


def test_classic_repeats_itself_with_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [classic(seed, capsys) for seed in range(20)]
    assert outputs == [classic(seed, capsys) for seed in range(20)]
    assert len({tuple(output) for output in outputs}) > 10
    for output in outputs:
        check_classic(output)
