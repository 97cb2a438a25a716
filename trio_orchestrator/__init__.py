"""Structured concurrency under load: many fallible jobs at once, nothing overloaded, lost or left behind.

The house, from the bottom up (each room knows only those before it)::

    abc, errors      contracts and exceptions
    block, value     tasks beside a block, bare exceptions, verdicts; a value to wait for
    algorithms       pure rules: backoff, the schedule, ramps, sketches
    observe          logging, recording, progress
    policies         around one call: Retry, Timeout, what counts as a failure
    queue            many calls: open_task_queue, map_all, open_map, gates
    testing          for your tests and ours: virtual time, schedules, cancellation everywhere

Everything public is here, except `trio_orchestrator.testing`. Names are resolved when they are first used, so that
importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trio_orchestrator.abc import Backoff as Backoff
    from trio_orchestrator.abc import Budget as Budget
    from trio_orchestrator.abc import Instrument as Instrument
    from trio_orchestrator.abc import Policy as Policy
    from trio_orchestrator.algorithms.backoff import AdditiveJitter as AdditiveJitter
    from trio_orchestrator.algorithms.backoff import Constant as Constant
    from trio_orchestrator.algorithms.backoff import Custom as Custom
    from trio_orchestrator.algorithms.backoff import DecorrelatedJitter as DecorrelatedJitter
    from trio_orchestrator.algorithms.backoff import EqualJitter as EqualJitter
    from trio_orchestrator.algorithms.backoff import Exponential as Exponential
    from trio_orchestrator.algorithms.backoff import Fibonacci as Fibonacci
    from trio_orchestrator.algorithms.backoff import FullJitter as FullJitter
    from trio_orchestrator.algorithms.backoff import Linear as Linear
    from trio_orchestrator.algorithms.sketch import Quantiles as Quantiles
    from trio_orchestrator.errors import JobCancelledError as JobCancelledError
    from trio_orchestrator.errors import JobDroppedError as JobDroppedError
    from trio_orchestrator.errors import JobError as JobError
    from trio_orchestrator.errors import JobTimeoutError as JobTimeoutError
    from trio_orchestrator.errors import OrchestratorError as OrchestratorError
    from trio_orchestrator.errors import QueueFullError as QueueFullError
    from trio_orchestrator.errors import RejectedError as RejectedError
    from trio_orchestrator.event import GateOpened as GateOpened
    from trio_orchestrator.event import GateShut as GateShut
    from trio_orchestrator.event import GaveUp as GaveUp
    from trio_orchestrator.event import JobFinished as JobFinished
    from trio_orchestrator.event import LimitChanged as LimitChanged
    from trio_orchestrator.event import QueueDropped as QueueDropped
    from trio_orchestrator.event import RetryScheduled as RetryScheduled
    from trio_orchestrator.observe.log import LogInstrument as LogInstrument
    from trio_orchestrator.observe.recorder import Recorder as Recorder
    from trio_orchestrator.policies.attempt import Attempt as Attempt
    from trio_orchestrator.policies.failure import GiveUp as GiveUp
    from trio_orchestrator.policies.failure import mark_permanent as mark_permanent
    from trio_orchestrator.policies.http import HttpRetryAfter as HttpRetryAfter
    from trio_orchestrator.policies.http import http_retry_after as http_retry_after
    from trio_orchestrator.policies.http import http_transient as http_transient
    from trio_orchestrator.policies.retry import Retry as Retry
    from trio_orchestrator.policies.timeout import Timeout as Timeout
    from trio_orchestrator.queue.failures import Failures as Failures
    from trio_orchestrator.queue.gates import Cooldown as Cooldown
    from trio_orchestrator.queue.gates import Gate as Gate
    from trio_orchestrator.queue.group import JobGroup as JobGroup
    from trio_orchestrator.queue.handle import JobHandle as JobHandle
    from trio_orchestrator.queue.handle import JobOptions as JobOptions
    from trio_orchestrator.queue.handle import JobState as JobState
    from trio_orchestrator.queue.mapping import MapOptions as MapOptions
    from trio_orchestrator.queue.mapping import MapOutcome as MapOutcome
    from trio_orchestrator.queue.mapping import map_all as map_all
    from trio_orchestrator.queue.mapping import open_map as open_map
    from trio_orchestrator.queue.opening import open_task_queue as open_task_queue
    from trio_orchestrator.queue.overflow import Overflow as Overflow
    from trio_orchestrator.queue.settings import KeyOrder as KeyOrder
    from trio_orchestrator.queue.statistics import QueueStatistics as QueueStatistics
    from trio_orchestrator.queue.task_queue import TaskQueue as TaskQueue

_HOMES = {
    "abc": (
        "Backoff Budget GateOpened GateShut GaveUp Instrument JobFinished LimitChanged Policy QueueDropped"
        " RetryScheduled"
    ),
    "algorithms.backoff": (
        "AdditiveJitter Constant Custom DecorrelatedJitter EqualJitter Exponential Fibonacci FullJitter Linear"
    ),
    "algorithms.sketch": "Quantiles",
    "errors": (
        "JobCancelledError JobDroppedError JobError JobTimeoutError OrchestratorError QueueFullError RejectedError"
    ),
    "observe.log": "LogInstrument",
    "observe.recorder": "Recorder",
    "policies.attempt": "Attempt",
    "policies.failure": "GiveUp mark_permanent",
    "policies.http": "HttpRetryAfter http_retry_after http_transient",
    "policies.retry": "Retry",
    "policies.timeout": "Timeout",
    "queue.failures": "Failures",
    "queue.gates": "Cooldown Gate",
    "queue.group": "JobGroup",
    "queue.handle": "JobHandle JobOptions JobState",
    "queue.mapping": "MapOptions MapOutcome map_all open_map",
    "queue.overflow": "Overflow",
    "queue.settings": "KeyOrder",
    "queue.statistics": "QueueStatistics",
    "queue.opening": "open_task_queue",
    "queue.task_queue": "TaskQueue",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"
__all__ = [
    "AdditiveJitter",
    "Attempt",
    "Backoff",
    "Budget",
    "Constant",
    "Cooldown",
    "Custom",
    "DecorrelatedJitter",
    "EqualJitter",
    "Exponential",
    "Failures",
    "Fibonacci",
    "FullJitter",
    "Gate",
    "GateOpened",
    "GateShut",
    "GaveUp",
    "GiveUp",
    "HttpRetryAfter",
    "Instrument",
    "JobCancelledError",
    "JobDroppedError",
    "JobError",
    "JobFinished",
    "JobGroup",
    "JobHandle",
    "JobOptions",
    "JobState",
    "JobTimeoutError",
    "KeyOrder",
    "LimitChanged",
    "Linear",
    "LogInstrument",
    "MapOptions",
    "MapOutcome",
    "OrchestratorError",
    "Overflow",
    "Policy",
    "Quantiles",
    "QueueDropped",
    "QueueFullError",
    "QueueStatistics",
    "Recorder",
    "RejectedError",
    "Retry",
    "RetryScheduled",
    "TaskQueue",
    "Timeout",
    "http_retry_after",
    "http_transient",
    "map_all",
    "mark_permanent",
    "open_map",
    "open_task_queue",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
