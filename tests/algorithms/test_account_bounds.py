"""What is no export is refused before anything is restored."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from trio_orchestrator.algorithms.account import Account, check_exported

EXPORTED: dict[str, Any] = Account(Decimal(1), Decimal(10), (0.5,)).export() | {
    "per": "day",
    "period_start": 0,
    "whole": True,
    "usual": 0.0,
    "usual_periods": 0.0,
}


def test_an_export_passes() -> None:
    check_exported(EXPORTED, "day")


@pytest.mark.parametrize("spent", ["x", "-1", "nan", "inf", "1e60"])
def test_what_is_no_amount_is_refused(spent: str) -> None:
    with pytest.raises(ValueError, match=r"^exported "):
        check_exported(EXPORTED | {"spent": spent}, "day")
