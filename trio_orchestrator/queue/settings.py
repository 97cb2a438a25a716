"""What a queue was opened with, checked."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast, final, runtime_checkable

import trio

from trio_orchestrator.abc import Instrument, Policy, RandomSource
from trio_orchestrator.algorithms.argument import above, count, random_source
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.queue.failures import Failures
from trio_orchestrator.queue.gates import Cooldown
from trio_orchestrator.queue.overflow import Overflow
from trio_orchestrator.queue.slots import check_concurrency


@final
class KeyOrder(enum.Enum):
    """Whether a retry pause lets the next job of the same key overtake."""

    FREE = "free"
    """A job in its retry pause holds no unit of its key."""
    STRICT = "strict"
    """It does: the next job of a key waits until its predecessor has ended. For accounts and payments."""


@runtime_checkable
class MeasuredSlots(Protocol):
    """Slots whose number depends on how attempts end, such as an `AdaptiveLimiter`."""

    @property
    def tokens(self) -> trio.CapacityLimiter:
        """The slots."""
        ...

    @property
    def measured(self) -> Policy:
        """What measures an attempt that holds a slot already."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of `open_task_queue`."""

    concurrency: int | float
    limiter: trio.CapacityLimiter | None
    retry: Retry | None
    protect: Policy | None
    cooldown: Cooldown | None
    max_waiting: float
    overflow: Overflow
    failures: Failures
    ageing: float
    per_key: float
    per_key_order: KeyOrder
    bypass: float
    attempt_timeout: float
    timeout: float
    start_within: float
    name: str
    instruments: Sequence[Instrument]
    rng: RandomSource | None

    @property
    def plain(self) -> bool:
        """Whether a job without terms of its own needs nothing but a slot."""
        retry = self.retry
        return not (
            self.protect or self.cooldown or self.instruments or self.needs_terms or self.attempt_timeout < math.inf
        ) and (
            retry is None or (retry.attempt_timeout == math.inf and retry.on_result is None and retry.budget is None)
        )

    @property
    def needs_terms(self) -> bool:
        """Whether every job has terms because of the queue's own settings."""
        return (
            self.ageing < math.inf
            or self.timeout < math.inf
            or self.start_within < math.inf
            or (self.retry is not None and self.retry.timeout < math.inf)
        )


def checked(
    *,
    concurrency: float | None,
    limiter: trio.CapacityLimiter | MeasuredSlots | None,
    retry: Retry | None,
    protect: Policy | None,
    cooldown: Cooldown | None,
    max_waiting: float | None,
    overflow: Overflow,
    failures: Failures,
    ageing: float,
    per_key: float,
    per_key_order: KeyOrder,
    bypass: float,
    attempt_timeout: float,
    timeout: float,
    start_within: float,
    name: str,
    instruments: Sequence[Instrument],
    rng: RandomSource | None,
) -> Settings:
    """Return the settings, or raise a `TypeError` or `ValueError` that names the parameter."""
    if limiter is not None and concurrency is not None:
        raise TypeError("concurrency must not be given together with limiter: the limiter's total_tokens is the limit")
    slots = 3 if concurrency is None else concurrency
    check_concurrency(slots, 1)
    for parameter, value, kinds in (
        ("limiter", limiter, (trio.CapacityLimiter, MeasuredSlots, type(None))),
        ("retry", retry, (Retry, type(None))),
        ("protect", protect, (Policy, type(None))),
        ("cooldown", cooldown, (Cooldown, type(None))),
        ("overflow", overflow, (Overflow,)),
        ("failures", failures, (Failures,)),
        ("per_key_order", per_key_order, (KeyOrder,)),
        ("name", name, (str,)),
    ):
        _check_kind(parameter, value, kinds)
    random_source("rng", rng)
    if per_key_order is KeyOrder.STRICT and per_key == math.inf:
        raise ValueError("per_key_order=STRICT needs per_key")
    if isinstance(limiter, MeasuredSlots):
        protect, limiter = _measured_by(limiter, protect), limiter.tokens
    limit = slots if limiter is None else limiter.total_tokens
    return Settings(
        concurrency=slots,
        limiter=limiter,
        retry=retry,
        protect=protect,
        cooldown=cooldown,
        max_waiting=max(1000, 10 * limit) if max_waiting is None else count("max_waiting", max_waiting, 1),
        overflow=overflow,
        failures=failures,
        ageing=above("ageing", ageing, 0),
        per_key=count("per_key", per_key, 1),
        per_key_order=per_key_order,
        bypass=count("bypass", bypass, 0),
        attempt_timeout=above("attempt_timeout", attempt_timeout, 0),
        timeout=above("timeout", timeout, 0),
        start_within=above("start_within", start_within, 0),
        name=name,
        instruments=_instruments(instruments),
        rng=rng,
    )


def _measured_by(limiter: MeasuredSlots, protect: Policy | None) -> Policy:
    """Return what surrounds each attempt: `protect`, and inside it what measures, so that no wait is measured."""
    if protect is None:
        return limiter.measured
    from trio_orchestrator.policies.stack import Stack  # only here: it knows every policy, and most queues need none

    return Stack(protect, limiter.measured)


def _check_kind(parameter: str, value: object, kinds: tuple[type[object], ...]) -> None:
    if not isinstance(value, kinds):
        name = kinds[0].__name__
        raise TypeError(f"{parameter} must be a{'n' * (name[0] in 'AEIOU')} {name}, got {value!r}")


def _instruments(instruments: Iterable[Instrument]) -> tuple[Instrument, ...]:
    if not isinstance(cast("object", instruments), Iterable):
        raise TypeError(f"instruments must be Instrument objects, got {instruments!r}")
    found = tuple(instruments)
    for instrument in found:
        if not isinstance(cast("object", instrument), Instrument):
            raise TypeError(f"instruments must be Instrument objects, got {instrument!r}")
    return found
