from __future__ import annotations

import functools
import math
import operator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trio_orchestrator.algorithms.bucket import Bucket, parts

amounts = st.integers(0, 20_000)


def test_it_begins_full_and_takes_all_or_nothing() -> None:
    bucket = Bucket(10_000)
    assert bucket.full
    assert [bucket.take(6_000), bucket.take(6_000), bucket.take(4_000)] == [True, False, True]
    assert (bucket.level, bucket.taken, bucket.given) == (0, 10_000, 0)
    assert not bucket.full


def test_draining_and_giving_stop_at_the_ends() -> None:
    bucket = Bucket(2_500)
    for level in (1_500, 500, 0, 0):
        bucket.drain(1_000)
        assert bucket.level == level
    bucket.give(9_000)
    assert (bucket.level, bucket.taken, bucket.given) == (2_500, 2_500, 2_500)
    assert bucket.full


def test_ten_thousand_tenths_do_not_drift() -> None:
    bucket = Bucket(2_000_000)
    bucket.drain(1_500_000)
    for _ in range(10_000):
        bucket.give(parts("tenth", 0.1))
    assert bucket.level == 1_500_000
    assert functools.reduce(operator.add, [0.1] * 10_000) != 1_000  # what floats make of it


class BucketMachine(RuleBasedStateMachine):
    @initialize(capacity=amounts)
    def make(self, capacity: int) -> None:
        self.bucket = Bucket(capacity)
        self.level = self.capacity = capacity

    @rule(amount=amounts)
    def take(self, amount: int) -> None:
        enough = amount <= self.level
        assert self.bucket.take(amount) is enough
        self.level -= amount if enough else 0

    @rule(amount=amounts)
    def drain(self, amount: int) -> None:
        self.bucket.drain(amount)
        self.level = max(0, self.level - amount)

    @rule(amount=amounts)
    def give(self, amount: int) -> None:
        self.bucket.give(amount)
        self.level = min(self.capacity, self.level + amount)

    @invariant()
    def conserves(self) -> None:
        bucket = self.bucket
        assert bucket.level == self.level == bucket.capacity - bucket.taken + bucket.given
        assert 0 <= bucket.level <= bucket.capacity == self.capacity
        assert bucket.full is (self.level == self.capacity)


TestBucket = BucketMachine.TestCase
TestBucket.settings = settings(stateful_step_count=25)


@given(st.integers(0, 10**9))
def test_thousandths_are_exact(thousandths: int) -> None:
    assert parts("level", thousandths / 1000) == thousandths


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, "level must be >= 0 and finite, got -1"),
        (math.inf, ValueError, "level must be >= 0 and finite, got inf"),
        (math.nan, ValueError, "level must be >= 0 and finite, got nan"),
        (0.0004, ValueError, "level must be 0 or >= 0.001, got 0.0004"),
        (True, TypeError, "level must be a number, got True"),
        ("3", TypeError, "level must be a number, got '3'"),
    ],
)
def test_bad_amounts(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        parts("level", value)
    assert str(caught.value) == message
