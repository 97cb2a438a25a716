"""The storm example prints the figures that it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def printed() -> str:
    command = [sys.executable, str(ROOT / "examples" / "storm.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=True).stdout


def row(printed: str, name: str) -> list[str]:
    [line] = [line for line in printed.splitlines() if line.startswith(name)]
    return re.split(r"\s{2,}", line)[1:]


@pytest.mark.parametrize(("layers", "calls", "ours"), [("10 x 10", "100", "10"), ("100 x 10", "1,000", "10")])
def test_retries_multiply_unless_an_exhausted_one_is_left_alone(
    printed: str, layers: str, calls: str, ours: str
) -> None:
    assert row(printed, layers) == [calls, ours]


def test_the_loop_and_when_the_alarm_rings(printed: str) -> None:
    assert "Friday 18:00 to Monday 09:00: 63,000,000 calls in 63 h." in printed
    assert "rang after 1,000 calls, 3.6 s." in printed


@pytest.mark.parametrize(
    ("service", "price", "bill", "alarm", "guarded"),
    [
        ("a message queue", "0.40", "25.20", "0.000400", "4.00"),
        ("an API gateway", "3.50", "220.50", "0.003500", "3.99"),
        ("a key-value store", "1.25", "78.75", "0.001250", "4.00"),
    ],
)
def test_the_bill(printed: str, service: str, price: str, bill: str, alarm: str, guarded: str) -> None:
    assert row(printed, service) == [price, bill, alarm, f"{guarded} in 4 days"]
    assert Decimal(bill) == 63 * Decimal(price)
    assert Decimal(guarded) <= 4
