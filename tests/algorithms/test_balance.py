"""Sums that forget: by the model below, a booking counts for 9/10 to 10/10 of the window, and then for nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trio_orchestrator.algorithms.balance import SLOTS, Balance, Entry

WINDOW = 10.0
eighths = st.integers(0, 100).map(lambda eighths: eighths / 8)


def book(balance: Balance, now: float, *, debit: int = 0, credit: int = 0) -> Entry:
    entry = balance.entry(now)
    balance.book(entry, debit=debit, credit=credit)
    return entry


def sums(balance: Balance, now: float) -> tuple[int, int]:
    balance.expire(now)
    return balance.debit, balance.credit


def test_a_booking_is_forgotten_after_the_window() -> None:
    balance = Balance(WINDOW)
    book(balance, 100, debit=3, credit=5)
    assert [sums(balance, 100 + age) for age in (0, 9.999, 10)] == [(3, 5), (3, 5), (0, 0)]
    assert len(balance) == 0


def test_a_part_of_the_window_is_forgotten_at_once() -> None:
    balance = Balance(WINDOW)
    for now in (100.0, 100.5, 100.9, 101.0):
        book(balance, now, credit=1)
    assert len(balance) == 2
    assert [sums(balance, now)[1] for now in (109.9, 110.0, 110.9, 111.0)] == [4, 1, 1, 0]


def test_what_is_booked_late_goes_to_its_own_part_or_nowhere() -> None:
    balance = Balance(WINDOW)
    entry = book(balance, 0, debit=1)
    book(balance, 5, debit=1)
    balance.book(entry, credit=1)
    assert sums(balance, 9) == (2, 1)
    assert sums(balance, 10) == (1, 0)
    balance.book(entry, credit=1)
    assert sums(balance, 10) == (1, 0)
    assert entry.lapsed


def test_another_clock_begins_anew() -> None:
    balance = Balance(WINDOW)
    book(balance, 1000, debit=7)
    entry = book(balance, 1005, debit=7)
    assert sums(balance, 3) == (0, 0)
    assert entry.lapsed
    book(balance, 3, debit=1)
    assert sums(balance, 4) == (1, 0)


@given(st.lists(st.floats(0, 3), max_size=300), st.floats(0.01, 1000))
def test_memory_is_bounded_and_an_idle_window_leaves_nothing(pauses: list[float], window: float) -> None:
    balance, now = Balance(window), 0.0
    for pause in pauses:
        now += pause * window / SLOTS
        entry = book(balance, now, debit=1)
        assert len(balance) <= SLOTS + 1
        assert 0 <= now - entry.at < window / SLOTS
    balance.expire(now + 1.000001 * window)
    assert (len(balance), balance.debit, balance.credit) == (0, 0, 0)


class BalanceMachine(RuleBasedStateMachine):
    @initialize(now=eighths)
    def make(self, now: float) -> None:
        self.balance = Balance(WINDOW)
        self.now = now
        self.booked: list[tuple[float, int, int]] = []
        self.entries: list[tuple[float, Entry]] = []

    @rule(seconds=eighths)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(debit=st.integers(0, 9), credit=st.integers(0, 9))
    def begin(self, debit: int, credit: int) -> None:
        entry = book(self.balance, self.now, debit=debit, credit=credit)
        self.booked.append((self.now, debit, credit))
        self.entries.append((self.now, entry))

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), credit=st.integers(0, 9))
    def come_of_it(self, data: st.DataObject, credit: int) -> None:
        began_at, entry = data.draw(st.sampled_from(self.entries))
        self.balance.book(entry, credit=credit)
        self.booked.append((began_at, 0, credit))

    @invariant()
    def counts_what_is_young(self) -> None:
        got = sums(self.balance, self.now)
        for which in (0, 1):
            young = sum(each[1 + which] for each in self.booked if self.now - each[0] <= 0.9 * WINDOW)
            alive = sum(each[1 + which] for each in self.booked if self.now - each[0] < WINDOW)
            assert young <= got[which] <= alive


TestBalance = BalanceMachine.TestCase
TestBalance.settings = settings(stateful_step_count=25)
