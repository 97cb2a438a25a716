"""Structured concurrency under load: many fallible jobs at once, nothing overloaded, lost or left behind.

The house, from the bottom up (each room knows only those before it)::

    abc, errors, event   contracts, exceptions, what instruments hear
    block, value         tasks beside a block, bare exceptions, verdicts; a value to wait for
    algorithms           pure rules: backoff, circuits, rates, budgets, adaptive limits, the schedule
    observe              logging, recording, progress
    policies             around one call: Retry, Timeout, CircuitBreaker, RateLimiter, Hedge, Stack ...
    queue                many calls: open_task_queue, map_all, open_map, gates
    redis                Trio speaks Redis: redis-py's commands on a native transport; stands alone
    transport            a policy under an httpx client
    testing              for your tests and ours: virtual time, schedules, cancellation everywhere; servers, faults

Everything public is here, except `trio_orchestrator.testing` and `trio_orchestrator.redis`. Names are resolved when
they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trio_orchestrator.abc import Backoff as Backoff
    from trio_orchestrator.abc import Budget as Budget
    from trio_orchestrator.abc import Control as Control
    from trio_orchestrator.abc import Instrument as Instrument
    from trio_orchestrator.abc import Limit as Limit
    from trio_orchestrator.abc import Policy as Policy
    from trio_orchestrator.abc import RandomSource as RandomSource
    from trio_orchestrator.abc import Sample as Sample
    from trio_orchestrator.algorithms.aimd import AIMD as AIMD
    from trio_orchestrator.algorithms.arc import ARC as ARC
    from trio_orchestrator.algorithms.backoff import AdditiveJitter as AdditiveJitter
    from trio_orchestrator.algorithms.backoff import Constant as Constant
    from trio_orchestrator.algorithms.backoff import Custom as Custom
    from trio_orchestrator.algorithms.backoff import DecorrelatedJitter as DecorrelatedJitter
    from trio_orchestrator.algorithms.backoff import EqualJitter as EqualJitter
    from trio_orchestrator.algorithms.backoff import Exponential as Exponential
    from trio_orchestrator.algorithms.backoff import Fibonacci as Fibonacci
    from trio_orchestrator.algorithms.backoff import FullJitter as FullJitter
    from trio_orchestrator.algorithms.backoff import Linear as Linear
    from trio_orchestrator.algorithms.circuit import CircuitState as CircuitState
    from trio_orchestrator.algorithms.envoy import EnvoyGradient as EnvoyGradient
    from trio_orchestrator.algorithms.gcra import Reply as Reply
    from trio_orchestrator.algorithms.gradient2 import Gradient2 as Gradient2
    from trio_orchestrator.algorithms.quantile import Quantile as Quantile
    from trio_orchestrator.algorithms.sketch import Quantiles as Quantiles
    from trio_orchestrator.algorithms.trip import AnyOf as AnyOf
    from trio_orchestrator.algorithms.trip import Consecutive as Consecutive
    from trio_orchestrator.algorithms.trip import Ratio as Ratio
    from trio_orchestrator.algorithms.trip import SlowRatio as SlowRatio
    from trio_orchestrator.algorithms.trip import Tally as Tally
    from trio_orchestrator.algorithms.trip import Trip as Trip
    from trio_orchestrator.algorithms.vegas import Vegas as Vegas
    from trio_orchestrator.errors import BudgetExhaustedError as BudgetExhaustedError
    from trio_orchestrator.errors import CircuitOpenError as CircuitOpenError
    from trio_orchestrator.errors import JobCancelledError as JobCancelledError
    from trio_orchestrator.errors import JobDroppedError as JobDroppedError
    from trio_orchestrator.errors import JobError as JobError
    from trio_orchestrator.errors import JobTimeoutError as JobTimeoutError
    from trio_orchestrator.errors import LimitExceededError as LimitExceededError
    from trio_orchestrator.errors import OrchestratorError as OrchestratorError
    from trio_orchestrator.errors import QueueFullError as QueueFullError
    from trio_orchestrator.errors import RateLimitedError as RateLimitedError
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
    from trio_orchestrator.policies.adaptive import AdaptiveLimiter as AdaptiveLimiter
    from trio_orchestrator.policies.adaptive import AdaptiveStatistics as AdaptiveStatistics
    from trio_orchestrator.policies.adaptive import Slot as Slot
    from trio_orchestrator.policies.adaptive import SlotNowait as SlotNowait
    from trio_orchestrator.policies.attempt import Attempt as Attempt
    from trio_orchestrator.policies.breaker import CircuitBreaker as CircuitBreaker
    from trio_orchestrator.policies.breaker import CircuitStatistics as CircuitStatistics
    from trio_orchestrator.policies.budget import GrpcThrottle as GrpcThrottle
    from trio_orchestrator.policies.budget import RetryBudget as RetryBudget
    from trio_orchestrator.policies.budget import RetryBudgetStatistics as RetryBudgetStatistics
    from trio_orchestrator.policies.budget import TokenQuota as TokenQuota
    from trio_orchestrator.policies.budget import TokenStatistics as TokenStatistics
    from trio_orchestrator.policies.bulkhead import Bulkhead as Bulkhead
    from trio_orchestrator.policies.bulkhead import BulkheadStatistics as BulkheadStatistics
    from trio_orchestrator.policies.circuit_guard import CircuitGuard as CircuitGuard
    from trio_orchestrator.policies.circuit_guard import Isolation as Isolation
    from trio_orchestrator.policies.failure import GiveUp as GiveUp
    from trio_orchestrator.policies.failure import mark_permanent as mark_permanent
    from trio_orchestrator.policies.fallback import Fallback as Fallback
    from trio_orchestrator.policies.hedge import Hedge as Hedge
    from trio_orchestrator.policies.hedge import HedgeStatistics as HedgeStatistics
    from trio_orchestrator.policies.http import HttpRetryAfter as HttpRetryAfter
    from trio_orchestrator.policies.http import http_retry_after as http_retry_after
    from trio_orchestrator.policies.http import http_transient as http_transient
    from trio_orchestrator.policies.meter import CallMeter as CallMeter
    from trio_orchestrator.policies.meter import MeterGuard as MeterGuard
    from trio_orchestrator.policies.meter import MeterStatistics as MeterStatistics
    from trio_orchestrator.policies.meter import Spacing as Spacing
    from trio_orchestrator.policies.per_key import PerKey as PerKey
    from trio_orchestrator.policies.per_key import PerKeyStatistics as PerKeyStatistics
    from trio_orchestrator.policies.rate import RateLimiter as RateLimiter
    from trio_orchestrator.policies.rate import RateLimits as RateLimits
    from trio_orchestrator.policies.rate import SlidingWindow as SlidingWindow
    from trio_orchestrator.policies.rate_limit import RateLimit as RateLimit
    from trio_orchestrator.policies.rate_limit import RateStatistics as RateStatistics
    from trio_orchestrator.policies.retry import Retry as Retry
    from trio_orchestrator.policies.slot import AsyncPlace as AsyncPlace
    from trio_orchestrator.policies.slot import PlaceNowait as PlaceNowait
    from trio_orchestrator.policies.spend import Charge as Charge
    from trio_orchestrator.policies.spend import SpendGuard as SpendGuard
    from trio_orchestrator.policies.spend import SpendStatistics as SpendStatistics
    from trio_orchestrator.policies.stack import Stack as Stack
    from trio_orchestrator.policies.storm import StormAlarm as StormAlarm
    from trio_orchestrator.policies.storm import StormStatistics as StormStatistics
    from trio_orchestrator.policies.throttle import SreThrottle as SreThrottle
    from trio_orchestrator.policies.throttle import ThrottleGuard as ThrottleGuard
    from trio_orchestrator.policies.throttle import ThrottleStatistics as ThrottleStatistics
    from trio_orchestrator.policies.throttling import aws_throttled as aws_throttled
    from trio_orchestrator.policies.throttling import aws_transient as aws_transient
    from trio_orchestrator.policies.throttling import http_throttled as http_throttled
    from trio_orchestrator.policies.throttling import redis_transient as redis_transient
    from trio_orchestrator.policies.throttling import socket_transient as socket_transient
    from trio_orchestrator.policies.timeout import Timeout as Timeout
    from trio_orchestrator.policy_event import CircuitClosed as CircuitClosed
    from trio_orchestrator.policy_event import CircuitHalfOpened as CircuitHalfOpened
    from trio_orchestrator.policy_event import CircuitIsolated as CircuitIsolated
    from trio_orchestrator.policy_event import CircuitOpened as CircuitOpened
    from trio_orchestrator.policy_event import FallbackUsed as FallbackUsed
    from trio_orchestrator.policy_event import HedgeStarted as HedgeStarted
    from trio_orchestrator.policy_event import SpendStopped as SpendStopped
    from trio_orchestrator.policy_event import SpendWarned as SpendWarned
    from trio_orchestrator.policy_event import StormEnded as StormEnded
    from trio_orchestrator.policy_event import StormStarted as StormStarted
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
    from trio_orchestrator.redis_event import RedisConnected as RedisConnected
    from trio_orchestrator.redis_event import RedisFailover as RedisFailover
    from trio_orchestrator.redis_event import RedisLost as RedisLost
    from trio_orchestrator.redis_event import RedisReady as RedisReady
    from trio_orchestrator.redis_event import RedisReconnecting as RedisReconnecting
    from trio_orchestrator.transport import HttpxTransport as HttpxTransport
    from trio_orchestrator.value import Changes as Changes

_HOMES = {
    "abc": "Backoff Budget Control Instrument Limit Policy RandomSource Sample",
    "algorithms.aimd": "AIMD",
    "algorithms.arc": "ARC",
    "algorithms.backoff": (
        "AdditiveJitter Constant Custom DecorrelatedJitter EqualJitter Exponential Fibonacci FullJitter Linear"
    ),
    "algorithms.circuit": "CircuitState",
    "algorithms.envoy": "EnvoyGradient",
    "algorithms.gcra": "Reply",
    "algorithms.gradient2": "Gradient2",
    "algorithms.quantile": "Quantile",
    "algorithms.sketch": "Quantiles",
    "algorithms.trip": "AnyOf Consecutive Ratio SlowRatio Tally Trip",
    "algorithms.vegas": "Vegas",
    "errors": (
        "BudgetExhaustedError CircuitOpenError JobCancelledError JobDroppedError JobError JobTimeoutError"
        " LimitExceededError OrchestratorError QueueFullError RateLimitedError RejectedError"
    ),
    "event": "GateOpened GateShut GaveUp JobFinished LimitChanged QueueDropped RetryScheduled",
    "observe.log": "LogInstrument",
    "observe.recorder": "Recorder",
    "policies.adaptive": "AdaptiveLimiter AdaptiveStatistics Slot SlotNowait",
    "policies.attempt": "Attempt",
    "policies.breaker": "CircuitBreaker CircuitStatistics",
    "policies.budget": "GrpcThrottle RetryBudget RetryBudgetStatistics TokenQuota TokenStatistics",
    "policies.bulkhead": "Bulkhead BulkheadStatistics",
    "policies.circuit_guard": "CircuitGuard Isolation",
    "policies.failure": "GiveUp mark_permanent",
    "policies.fallback": "Fallback",
    "policies.hedge": "Hedge HedgeStatistics",
    "policies.http": "HttpRetryAfter http_retry_after http_transient",
    "policies.meter": "CallMeter MeterGuard MeterStatistics Spacing",
    "policies.per_key": "PerKey PerKeyStatistics",
    "policies.rate": "RateLimiter RateLimits SlidingWindow",
    "policies.rate_limit": "RateLimit RateStatistics",
    "policies.retry": "Retry",
    "policies.slot": "AsyncPlace PlaceNowait",
    "policies.spend": "Charge SpendGuard SpendStatistics",
    "policies.stack": "Stack",
    "policies.storm": "StormAlarm StormStatistics",
    "policies.throttle": "SreThrottle ThrottleGuard ThrottleStatistics",
    "policies.throttling": "aws_throttled aws_transient http_throttled redis_transient socket_transient",
    "policies.timeout": "Timeout",
    "policy_event": (
        "CircuitClosed CircuitHalfOpened CircuitIsolated CircuitOpened FallbackUsed HedgeStarted SpendStopped"
        " SpendWarned StormEnded StormStarted"
    ),
    "queue.failures": "Failures",
    "queue.gates": "Cooldown Gate",
    "queue.group": "JobGroup",
    "queue.handle": "JobHandle JobOptions JobState",
    "queue.mapping": "MapOptions MapOutcome map_all open_map",
    "queue.opening": "open_task_queue",
    "queue.overflow": "Overflow",
    "queue.settings": "KeyOrder",
    "queue.statistics": "QueueStatistics",
    "queue.task_queue": "TaskQueue",
    "redis_event": "RedisConnected RedisFailover RedisLost RedisReady RedisReconnecting",
    "transport": "HttpxTransport",
    "value": "Changes",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"
__all__ = [
    "AIMD",
    "ARC",
    "AdaptiveLimiter",
    "AdaptiveStatistics",
    "AdditiveJitter",
    "AnyOf",
    "AsyncPlace",
    "Attempt",
    "Backoff",
    "Budget",
    "BudgetExhaustedError",
    "Bulkhead",
    "BulkheadStatistics",
    "CallMeter",
    "Changes",
    "Charge",
    "CircuitBreaker",
    "CircuitClosed",
    "CircuitGuard",
    "CircuitHalfOpened",
    "CircuitIsolated",
    "CircuitOpenError",
    "CircuitOpened",
    "CircuitState",
    "CircuitStatistics",
    "Consecutive",
    "Constant",
    "Control",
    "Cooldown",
    "Custom",
    "DecorrelatedJitter",
    "EnvoyGradient",
    "EqualJitter",
    "Exponential",
    "Failures",
    "Fallback",
    "FallbackUsed",
    "Fibonacci",
    "FullJitter",
    "Gate",
    "GateOpened",
    "GateShut",
    "GaveUp",
    "GiveUp",
    "Gradient2",
    "GrpcThrottle",
    "Hedge",
    "HedgeStarted",
    "HedgeStatistics",
    "HttpRetryAfter",
    "HttpxTransport",
    "Instrument",
    "Isolation",
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
    "Limit",
    "LimitChanged",
    "LimitExceededError",
    "Linear",
    "LogInstrument",
    "MapOptions",
    "MapOutcome",
    "MeterGuard",
    "MeterStatistics",
    "OrchestratorError",
    "Overflow",
    "PerKey",
    "PerKeyStatistics",
    "PlaceNowait",
    "Policy",
    "Quantile",
    "Quantiles",
    "QueueDropped",
    "QueueFullError",
    "QueueStatistics",
    "RandomSource",
    "RateLimit",
    "RateLimitedError",
    "RateLimiter",
    "RateLimits",
    "RateStatistics",
    "Ratio",
    "Recorder",
    "RedisConnected",
    "RedisFailover",
    "RedisLost",
    "RedisReady",
    "RedisReconnecting",
    "RejectedError",
    "Reply",
    "Retry",
    "RetryBudget",
    "RetryBudgetStatistics",
    "RetryScheduled",
    "Sample",
    "SlidingWindow",
    "Slot",
    "SlotNowait",
    "SlowRatio",
    "Spacing",
    "SpendGuard",
    "SpendStatistics",
    "SpendStopped",
    "SpendWarned",
    "SreThrottle",
    "Stack",
    "StormAlarm",
    "StormEnded",
    "StormStarted",
    "StormStatistics",
    "Tally",
    "TaskQueue",
    "ThrottleGuard",
    "ThrottleStatistics",
    "Timeout",
    "TokenQuota",
    "TokenStatistics",
    "Trip",
    "Vegas",
    "aws_throttled",
    "aws_transient",
    "http_retry_after",
    "http_throttled",
    "http_transient",
    "map_all",
    "mark_permanent",
    "open_map",
    "open_task_queue",
    "redis_transient",
    "socket_transient",
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
