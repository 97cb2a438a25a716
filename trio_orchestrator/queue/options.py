"""What one job was submitted with, checked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, cast

import trio

from trio_orchestrator.algorithms.argument import above, at_least, count, finite
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.queue.gates import Gate
from trio_orchestrator.queue.handle import JobOptions, Terms, Times
from trio_orchestrator.queue.statistics import SAMPLED

if TYPE_CHECKING:
    from trio_orchestrator.queue.engine import Engine


def check_function(fn: object) -> None:
    """Refuse what cannot be called, and say what to pass instead.

    Raises:
        TypeError: It is a coroutine object, or not callable.
    """
    if callable(fn):
        return
    if inspect.iscoroutine(fn):
        fn.close()  # it will never be awaited, and need not warn about that
        raise TypeError("fn must be an async function, got a coroutine object: pass the function and its arguments")
    raise TypeError(f"fn must be an async function, got {fn!r}")


def terms_of(engine: Engine, options: JobOptions) -> Terms | None:
    """Return the terms of a job with these options, or None if it needs none.

    Raises:
        TypeError: An option has the wrong type or is unknown.
        ValueError: An option is out of range.
    """
    settings = engine.settings
    sampled = engine.submitted % SAMPLED == 0
    if not (options or sampled or settings.needs_terms):
        return None
    terms = Terms(settings.retry)
    for name, value in options.items():
        take = _TAKE.get(name)
        if take is None:
            raise TypeError(f"{name} is no option of a job; pass arguments of the function by functools.partial")
        take(engine, terms, value)
    if settings.cooldown is not None:
        _take_cooldown(engine, terms)
    if sampled or settings.needs_terms or terms.times is not None:
        _set_times(engine, terms, trio.current_time())
        terms.watched = True
    if terms.priority:
        terms.rank -= terms.priority
    return terms


def start_of(options: JobOptions) -> float:
    """Return the time before which the job must not start; -inf if there is none."""
    if "delay" in options:
        if "start_at" in options:
            raise TypeError("delay and start_at exclude each other")
        return trio.current_time() + at_least("delay", options["delay"], 0, finite=True)
    return finite("start_at", options["start_at"]) if "start_at" in options else -math.inf


def _times(terms: Terms) -> Times:
    if terms.times is None:
        terms.times = Times(math.inf)
    return terms.times


def _set_times(engine: Engine, terms: Terms, now: float) -> None:
    settings, retry, times = engine.settings, terms.retry, _times(terms)
    times.submitted_at = now
    times.attempt_timeout = min(times.attempt_timeout, settings.attempt_timeout)
    times.timeout = min(times.timeout, settings.timeout)
    times.start_within = min(times.start_within, settings.start_within)
    if retry is not None:
        times.attempt_timeout = min(times.attempt_timeout, retry.attempt_timeout)
        times.timeout = min(times.timeout, retry.timeout)
    times.deadline = now + times.timeout
    times.start_by = now + times.start_within
    if settings.ageing < math.inf:
        terms.rank = times.age_rank = now / settings.ageing


def _take_priority(_: Engine, terms: Terms, priority: object) -> None:
    if type(priority) is int:  # the usual case, before the thorough one
        terms.priority = priority
    else:
        terms.priority = finite("priority", priority)


def _take_key(engine: Engine, terms: Terms, key: Hashable) -> None:
    try:
        hash(key)
    except TypeError:
        raise TypeError(f"key must be hashable, got {key!r}") from None
    terms.user_key = key
    if engine.settings.per_key < math.inf:
        terms.key = key


def _take_gate(engine: Engine, terms: Terms, gate: object) -> None:
    if not isinstance(gate, Gate):
        raise TypeError(f"gate must be a Gate, got {gate!r}")
    _set_gate(engine, terms, gate)


def _take_cooldown(engine: Engine, terms: Terms) -> None:
    """A job that names no gate has that of its key."""
    if terms.gate is None and terms.user_key is not None and engine.settings.cooldown is not None:
        _set_gate(engine, terms, engine.settings.cooldown.gate(terms.user_key))


def _set_gate(engine: Engine, terms: Terms, gate: Gate) -> None:
    if gate is not engine.own_gate:
        terms.gate = terms.lane = gate
        terms.watched = True


def _take_weight(engine: Engine, terms: Terms, weight: object) -> None:
    terms.weight = _weight(engine, weight)


def _take_retry(_: Engine, terms: Terms, retry: object) -> None:
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"retry must be a Retry or None, got {retry!r}")
    terms.retry = retry
    _times(terms)


def _take_attempt_timeout(_: Engine, terms: Terms, seconds: object) -> None:
    _times(terms).attempt_timeout = above("attempt_timeout", seconds, 0)


def _take_timeout(_: Engine, terms: Terms, seconds: object) -> None:
    _times(terms).timeout = above("timeout", seconds, 0)


def _take_start_within(_: Engine, terms: Terms, seconds: object) -> None:
    _times(terms).start_within = above("start_within", seconds, 0)


def _take_name(_: Engine, terms: Terms, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
    terms.name = name
    terms.watched = True


def _take_tags(_: Engine, terms: Terms, tags: object) -> None:
    terms.tags = tags_of(tags)


def _take_later(_: Engine, terms: Terms, __: object) -> None:
    """`delay` and `start_at` are `start_of`'s."""
    _times(terms)


_TAKE: dict[str, Callable[[Engine, Terms, Any], None]] = {
    "attempt_timeout": _take_attempt_timeout,
    "delay": _take_later,
    "gate": _take_gate,
    "key": _take_key,
    "name": _take_name,
    "priority": _take_priority,
    "retry": _take_retry,
    "start_at": _take_later,
    "start_within": _take_start_within,
    "tags": _take_tags,
    "timeout": _take_timeout,
    "weight": _take_weight,
}


def _weight(engine: Engine, weight: object) -> int:
    number = count("weight", weight, 1)
    if number == math.inf:
        raise ValueError("weight must be finite, got inf")
    if number > 1 and not engine.slots.private:
        raise ValueError(
            f"weight must be 1 in a queue with limiter=, got {weight}: two heavy jobs could wait for each other"
        )
    return int(number)


def tags_of(tags: object) -> tuple[str, ...]:
    """Return the tags, or raise a `TypeError`."""
    if not isinstance(tags, str) and isinstance(tags, Iterable):
        found = tuple(cast("Iterable[object]", tags))
        if all(isinstance(tag, str) for tag in found):
            return cast("tuple[str, ...]", found)
    raise TypeError(f"tags must be an iterable of str, got {tags!r}")
