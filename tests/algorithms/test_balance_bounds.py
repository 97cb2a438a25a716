"""The width of a part of the window, and what a booking adds if nothing is said."""

from __future__ import annotations

import math

from trio_orchestrator.algorithms.balance import Balance


def test_a_part_is_a_tenth_of_the_window_wide() -> None:
    balance = Balance(10.0)
    first = balance.entry(100.0)
    assert balance.entry(math.nextafter(101.0, 0)) is first
    assert balance.entry(101.0) is not first


def test_a_booking_adds_only_what_is_named() -> None:
    balance = Balance(10.0)
    entry = balance.entry(0.0)
    balance.book(entry)
    assert (balance.debit, balance.credit) == (0, 0)
    balance.book(entry, debit=3)
    assert (balance.debit, balance.credit) == (3, 0)
    balance.book(entry, credit=2)
    assert (balance.debit, balance.credit) == (3, 2)
