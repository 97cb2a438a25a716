"""Policies around policies: one value for many call sites, and an account of its order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar, TypeVarTuple, final

from trio_orchestrator.abc import Budget, Policy
from trio_orchestrator.algorithms.backoff import FullJitter
from trio_orchestrator.policies.breaker import CircuitBreaker
from trio_orchestrator.policies.budget import RetryBudget, TokenQuota
from trio_orchestrator.policies.hedge import Hedge
from trio_orchestrator.policies.http import http_retry_after, http_transient
from trio_orchestrator.policies.order import account, warnings
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.throttling import aws_throttled, aws_transient, redis_transient

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class Stack(Policy):
    """Several policies as one: the first is outermost. `Stack(retry, breaker, limiter)` retries around the breaker.

    A stack inside a stack is the same as its members in its place. A `Budget` among them is not a layer: it becomes the
    budget of every `Retry` and `Hedge` of the stack that has none of its own, and is then counted once a call.

    The stack adds nothing to a call but its members. They may be shared with other stacks, and used alone.

    Args:
        parts: Policies and budgets; none at all calls the function as it is.

    Raises:
        TypeError: One of them is neither.
        ValueError: There is a budget and nothing that would ask it, or more than one.
    """

    __slots__ = ("_inner", "_outer", "policies")

    policies: tuple[Policy | Budget, ...]
    """What it consists of, outermost first; nested stacks resolved."""

    def __init__(self, *parts: Policy | Budget) -> None:
        self.policies = tuple(_flat(parts))
        layers = _layers(self.policies)
        calls: list[Callable[..., Awaitable[Any]]] = [layer.call for layer in layers]
        self._outer: Callable[..., Awaitable[Any]] | None = calls[0] if calls else None
        self._inner = tuple(calls[1:])

    def __repr__(self) -> str:
        return f"Stack({', '.join(map(repr, self.policies))})"

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)` inside all of them and return its result.

        Has the checkpoints of `fn` and of those members that wait. Cancelling it cancels `fn`.
        """
        if self._outer is None:
            return await fn(*args)
        result: T = await self._outer(*self._inner, fn, *args)  # each calls the next: a.call(b.call, c.call, fn, *args)
        return result

    @classmethod
    def http(cls, *, attempts: int = 4, attempt_timeout: float = 10.0) -> Stack:
        """Return a fresh stack for calls of one HTTP service that may be repeated.

        Repeats what `http_transient` covers, as the server's `Retry-After` says or with full jitter, within 20 % of the
        calls; refuses while half of the attempts fail. Make one a service: its state is shared by whoever uses it.
        """
        return cls(
            Retry(
                on=http_transient,
                attempts=attempts,
                backoff=FullJitter(base=0.5, cap=20),
                attempt_timeout=attempt_timeout,
                retry_after=http_retry_after,
            ),
            RetryBudget(),
            CircuitBreaker(on=http_transient, name="http"),
        )

    @classmethod
    def aws(cls, *, attempts: int = 3, attempt_timeout: float = 60.0) -> Stack:
        """Return a fresh stack for calls of one AWS service, with the SDK's own retries switched off.

        The SDKs' standard mode: three attempts, full jitter of 1, 2, 4 ... 20 s, a quota of 500 tokens; and a breaker,
        which the SDKs do not have. 60 s is botocore's time-out for reading.
        """
        return cls(
            Retry(
                on=aws_transient,
                attempts=attempts,
                backoff=FullJitter(base=1, cap=20),
                attempt_timeout=attempt_timeout,
            ),
            TokenQuota.standard(),
            CircuitBreaker(on=aws_transient, neutral=aws_throttled, name="aws"),
        )

    @classmethod
    def redis(cls, *, attempts: int = 4, attempt_timeout: float = 5.0) -> Stack:
        """Return a fresh stack for commands to one Redis that may be repeated, with the client's own retries off.

        Repeats what `redis_transient` covers, soon: pauses of at most 10 ms, 20 ms ... 1 s, which are redis-py's.
        """
        return cls(
            Retry(
                on=redis_transient,
                attempts=attempts,
                backoff=FullJitter(base=0.01, cap=1),
                attempt_timeout=attempt_timeout,
            ),
            RetryBudget(),
            CircuitBreaker(on=redis_transient, cooldown=5, name="redis"),
        )

    def explain(self) -> str:
        """Return its order, outermost first, with all parameters, and a warning for each order known to be wrong."""
        return account(self.policies)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of `explain`: empty if the order is sound."""
        return tuple(warnings(self.policies))


def _flat(parts: Iterable[Policy | Budget]) -> Iterator[Policy | Budget]:
    for part in parts:
        if isinstance(part, Stack):
            yield from part.policies
        elif isinstance(part, (Policy, Budget)):  # pyright: ignore[reportUnnecessaryIsInstance]
            yield part
        else:
            raise TypeError(f"parts must be policies or budgets, got {part!r}")


def _layers(parts: tuple[Policy | Budget, ...]) -> list[Policy]:
    """Return the policies, with the budget given to those who ask one."""
    budgets = [part for part in parts if isinstance(part, Budget)]
    layers = [part for part in parts if isinstance(part, Policy)]
    if not budgets:
        return layers
    if len(budgets) > 1:
        raise ValueError(f"parts must not hold more than one budget, got {budgets!r}")
    budget = budgets[0]
    asking = [layer for layer in layers if isinstance(layer, (Retry, Hedge)) and layer.budget is None]
    if not asking:
        raise ValueError(f"parts must hold a Retry or a Hedge without a budget of its own, to ask {budget!r}")
    counting = next((layer for layer in asking if isinstance(layer, Retry)), asking[0])
    uncounted = _Uncounted(budget)
    shared = {id(layer): layer._sharing(budget if layer is counting else uncounted) for layer in asking}
    return [shared.get(id(layer), layer) for layer in layers]


@final
class _Uncounted(Budget):
    """A budget as seen by a second layer that asks it: calls are counted by the first one."""

    __slots__ = ("_budget",)

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def failed(self, error: BaseException | None) -> None:
        self._budget.failed(error)

    def withdraw(self, error: BaseException | None) -> bool:
        return self._budget.withdraw(error)

    def refund(self, error: BaseException | None) -> None:
        self._budget.refund(error)
