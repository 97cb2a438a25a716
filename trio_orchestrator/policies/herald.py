"""Tells whoever wants to know that a circuit has changed: those who wait, those who iterate, and instruments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.circuit import Circuit, CircuitState
from trio_orchestrator.block import Hooks, emit
from trio_orchestrator.policy_event import CircuitClosed, CircuitHalfOpened, CircuitIsolated, CircuitOpened
from trio_orchestrator.value import News, Value

CLOSED, OPEN, HALF_OPEN, ISOLATED = CircuitState


@final
class Herald:
    """Speaks for one circuit, after each of its changes."""

    __slots__ = ("_closed", "_half_opened", "_isolated", "_name", "_opened", "_state", "_untold", "news")

    def __init__(self, name: str, instruments: Sequence[Instrument]) -> None:
        hooks = Hooks(instruments)
        self._name = name
        self._opened = hooks.of("circuit_opened")
        self._half_opened = hooks.of("circuit_half_opened")
        self._closed = hooks.of("circuit_closed")
        self._isolated = hooks.of("circuit_isolated")
        self._untold: deque[tuple[list[Callable[[Any], None]], object]] = deque()
        self._state: Value[CircuitState] = Value(CLOSED)
        self.news: News[CircuitState] = News()

    async def wait_closed(self) -> None:
        """Wait until the last word was that it is closed. Always a checkpoint."""
        await self._state.wait_value(_is_closed)

    def turned(self, circuit: Circuit, error: BaseException | None, now: float, *, reset: bool) -> None:
        """Tell that its mode has changed; of one that is isolated only the instruments hear."""
        if not circuit.holds:
            self._publish(circuit.mode)
        if circuit.mode is OPEN and self._opened:
            self._tell(self._opened, CircuitOpened(self._name, circuit.cooldown, circuit.openings, error))
        elif circuit.mode is HALF_OPEN and self._half_opened:
            self._tell(self._half_opened, CircuitHalfOpened(self._name, max(0.0, now - circuit.opened_at)))
        elif circuit.mode is CLOSED and self._closed:
            self._tell(self._closed, CircuitClosed(self._name, max(0.0, now - circuit.first_opened_at), reset))

    def isolated(self, circuit: Circuit) -> None:
        """Tell that it is isolated, or no longer."""
        self._publish(ISOLATED if circuit.holds else circuit.mode)
        if self._isolated:
            self._tell(self._isolated, CircuitIsolated(self._name, circuit.holds > 0, circuit.holds))

    def _publish(self, state: CircuitState) -> None:
        self.news.tell(state)
        self._state.value = state

    def _tell(self, hooks: list[Callable[[Any], None]], event: object) -> None:
        """Tell an event; one that a hook causes is told when all have heard the one before."""
        self._untold.append((hooks, event))
        if len(self._untold) > 1:
            return
        try:
            while self._untold:
                emit(*self._untold[0])
                self._untold.popleft()
        finally:
            self._untold.clear()


def _is_closed(state: CircuitState) -> bool:
    return state is CLOSED
