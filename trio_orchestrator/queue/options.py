"""What one job was submitted with, checked."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import trio

from trio_orchestrator.algorithms.argument import above, at_least, count
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.queue.gates import Gate
from trio_orchestrator.queue.handle import JobOptions, Terms
from trio_orchestrator.queue.statistics import SAMPLED

if TYPE_CHECKING:
    from trio_orchestrator.queue.engine import Engine

_KNOWN = frozenset(JobOptions.__annotations__)


def check_function(fn: object) -> None:
    """Refuse what cannot be called, and say what to pass instead.

    Raises:
        TypeError: It is a coroutine object, or not callable.
    """
    if inspect.iscoroutine(fn):
        fn.close()  # it will never be awaited, and need not warn about that
        raise TypeError("fn must be an async function, got a coroutine object: pass the function and its arguments")
    if not callable(fn):
        raise TypeError(f"fn must be an async function, got {fn!r}")


def terms_of(engine: Engine, options: JobOptions) -> Terms | None:
    """Return the terms of a job with these options, or None if it needs none.

    Raises:
        TypeError: An option has the wrong type or is unknown.
        ValueError: An option is out of range.
    """
    sampled = engine.submitted % SAMPLED == 0
    if not (options or sampled or engine.settings.needs_terms):
        return None
    terms = Terms()
    now = terms.submitted_at = trio.current_time()
    terms.retry = engine.settings.retry
    if options:
        _take_options(engine, terms, options)
    _set_times(engine, terms, options, now)
    if engine.settings.ageing < math.inf:
        terms.age_rank = now / engine.settings.ageing
    terms.rank = terms.age_rank - terms.priority
    return terms


def start_of(options: JobOptions) -> float:
    """Return the time before which the job must not start; -inf if there is none."""
    if "delay" in options:
        if "start_at" in options:
            raise TypeError("delay and start_at exclude each other")
        return trio.current_time() + at_least("delay", options["delay"], 0, finite=True)
    return at_least("start_at", options.get("start_at", -math.inf), -math.inf)


def _take_options(engine: Engine, terms: Terms, options: JobOptions) -> None:
    unknown = options.keys() - _KNOWN
    if unknown:
        raise TypeError(f"{min(unknown)} is no option of a job; pass arguments of the function by functools.partial")
    terms.priority = at_least("priority", options.get("priority", 0.0), -math.inf, finite=True)
    terms.weight = _weight(engine, options.get("weight", 1))
    if "retry" in options:
        terms.retry = _instance("retry", options["retry"], Retry)
    if "name" in options:
        terms.name = _instance("name", options["name"], str)
    terms.tags = _tags(options.get("tags", ()))
    _take_key(engine, terms, options)


def _take_key(engine: Engine, terms: Terms, options: JobOptions) -> None:
    key = options.get("key")
    try:
        hash(key)
    except TypeError:
        raise TypeError(f"key must be hashable, got {key!r}") from None
    if engine.settings.per_key < math.inf:
        terms.key = key
    gate = None if options.get("gate") is None else _instance("gate", options["gate"], Gate)
    if gate is None and engine.settings.cooldown is not None:
        gate = engine.settings.cooldown.gate(key)
    terms.gate = terms.lane = gate if gate is not engine.own_gate else None


def _set_times(engine: Engine, terms: Terms, options: JobOptions, now: float) -> None:
    settings, retry = engine.settings, terms.retry
    terms.attempt_timeout = min(
        settings.attempt_timeout,
        above("attempt_timeout", options.get("attempt_timeout", math.inf), 0),
        retry.attempt_timeout if retry is not None else math.inf,
    )
    terms.timeout = min(
        settings.timeout,
        above("timeout", options.get("timeout", math.inf), 0),
        retry.timeout if retry is not None else math.inf,
    )
    terms.deadline = now + terms.timeout
    terms.start_within = min(settings.start_within, above("start_within", options.get("start_within", math.inf), 0))
    terms.start_by = now + terms.start_within


def _weight(engine: Engine, weight: object) -> int:
    number = count("weight", weight, 1)
    if number == math.inf:
        raise ValueError("weight must be finite, got inf")
    if number > 1 and not engine.slots.private:
        raise ValueError(f"weight must be 1 in a queue with limiter=, got {weight}: two heavy jobs could wait for each other")
    return int(number)


def _tags(tags: object) -> tuple[str, ...]:
    if isinstance(tags, str) or not hasattr(tags, "__iter__"):
        raise TypeError(f"tags must be an iterable of str, got {tags!r}")
    found = tuple(tags)
    if not all(isinstance(tag, str) for tag in found):
        raise TypeError(f"tags must be an iterable of str, got {tags!r}")
    return found


def _instance(name: str, value: Any, kind: type[Any]) -> Any:
    if not (isinstance(value, kind) or (value is None and kind is Retry)):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")
    return value
