"""What one enters of a circuit breaker: a guard around one call, and an operator's hold."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, final

from trio_orchestrator.algorithms.circuit import Permit
from trio_orchestrator.policies.guard import Guard
from trio_orchestrator.policies.verdict import SUCCESS

if TYPE_CHECKING:
    from trio_orchestrator.policies.breaker import CircuitBreaker


@final
class CircuitGuard(Guard):
    """One call through a circuit breaker: `with breaker.guard() as guard:`, once. Neither half blocks."""

    __slots__ = ("_breaker", "_epoch", "_permit")

    def __init__(self, breaker: CircuitBreaker) -> None:
        super().__init__(breaker._judge)
        self._breaker = breaker
        self._epoch: int | None = None
        self._permit: Permit | None = None

    def __enter__(self) -> CircuitGuard:
        """Let the call in.

        Raises:
            CircuitOpenError: The circuit is open, or all its probes are out.
            RuntimeError: The guard was entered before.
        """
        if self._epoch is not None:
            raise RuntimeError("this guard was entered before: take another by breaker.guard()")
        self._epoch = self._breaker._enter_plainly()
        if self._epoch is None:
            self._permit = self._breaker._admit()
            self._epoch = self._permit.epoch
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        breaker, permit, epoch = self._breaker, self._permit, self._epoch
        assert epoch is not None
        if permit is None:
            if error is None and self._verdict is None:
                return breaker._succeeded(epoch)
            permit = Permit(epoch, 0.0)
        if self._verdict is not None:
            breaker._settle(permit, error if isinstance(error, Exception) else None, self._verdict)
        elif error is None:
            breaker._settle(permit, None, SUCCESS)
        else:
            breaker._raised(permit, error)
        return None


@final
class Isolation:
    """A hold on a circuit breaker, made by `isolate()`. Ends by `release()`, or with its `with` block. Sync."""

    __slots__ = ("_breaker",)

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker: CircuitBreaker | None = breaker

    def release(self) -> None:
        """Let go. A second time changes nothing."""
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker._hold(breaker._circuit.release)

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
