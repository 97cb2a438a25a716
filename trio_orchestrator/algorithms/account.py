"""What was spent, counted and told in one period, as plain data that survives a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, final

from trio_orchestrator.algorithms.ledger import Ledger, amount

_NOTHING: Final = Decimal(0)
_FIELDS: Final[Mapping[type, str]] = {
    str: "per spent",
    int: "period_start calls refused",
    bool: "whole stopped unusual",
    list: "warned",
    float: "usual usual_periods",
}


@final
class Account:
    """One period of a guard: its ledger, and what has happened once or often in it.

    Args:
        price: What a unit costs.
        limit: What may be spent.
        fractions: Parts of the limit that are told when they are spent.
        carried: What was spent before.
        warned: The parts that were told before.
    """

    __slots__ = ("calls", "ledger", "refused", "stopped", "unusual", "warned")

    def __init__(
        self,
        price: Decimal,
        limit: Decimal,
        fractions: Iterable[float],
        carried: Decimal = _NOTHING,
        warned: Iterable[float] = (),
    ) -> None:
        self.warned: list[float] = list(warned)
        self.ledger: Ledger = Ledger(price, limit, [part for part in fractions if part not in self.warned], carried)
        self.calls: int = 0
        self.refused: int = 0
        self.stopped: bool = False
        """Whether a call was refused."""
        self.unusual: bool = False
        """Whether it was told that more than usual will be spent."""

    @property
    def used(self) -> bool:
        """Whether anything has happened."""
        return bool(self.ledger.units or self.calls or self.refused)

    def charge(self, units: int) -> list[float]:
        """Charge units; return the parts of the limit that are spent now, each of them once."""
        passed = self.ledger.charge(units)
        self.warned += passed
        return passed

    def export(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "spent": str(self.ledger.spent),
            "calls": self.calls,
            "refused": self.refused,
            "stopped": self.stopped,
            "warned": list(self.warned),
            "unusual": self.unusual,
        }


def restored(price: Decimal, limit: Decimal, fractions: Iterable[float], exported: Mapping[str, Any]) -> Account:
    """Return the account that was exported, checked before by `check_exported`, at a price and a limit of now."""
    account = Account(price, limit, fractions, _money(exported["spent"]), exported["warned"])
    account.calls, account.refused = exported["calls"], exported["refused"]
    account.stopped, account.unusual = exported["stopped"], exported["unusual"]
    return account


def check_exported(exported: Mapping[str, Any], per: str) -> None:
    """Raise `ValueError` unless `exported` has all the fields of a guard, of the right types, and is of `per`."""
    for kind, names in _FIELDS.items():
        for name in names.split():
            if type(exported.get(name)) is not kind:
                raise ValueError(f"exported must be what export() returns, got {name}={exported.get(name)!r}")
    if exported["per"] != per:
        raise ValueError(f"exported must be of the same per, {per!r}, got {exported['per']!r}")
    _money(exported["spent"])


def _money(text: str) -> Decimal:
    try:
        return amount("exported spent", Decimal(text), zero=True)
    except ArithmeticError:
        raise ValueError(f"exported must be what export() returns, got spent={text!r}") from None
