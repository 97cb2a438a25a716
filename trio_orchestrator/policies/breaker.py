"""A circuit breaker: stop calling what fails, and find out carefully whether it works again."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, cast, final

from trio import current_time
from trio.lowlevel import in_trio_run

from trio_orchestrator.abc import Backoff, Instrument, Policy, RandomSource
from trio_orchestrator.algorithms.argument import above, at_least, random_source
from trio_orchestrator.algorithms.circuit import Circuit, CircuitState, Permit, Refusal
from trio_orchestrator.algorithms.trip import Trip
from trio_orchestrator.errors import CircuitOpenError
from trio_orchestrator.policies.circuit_guard import CircuitGuard, Isolation
from trio_orchestrator.policies.circuit_rules import circuit_rules, whole
from trio_orchestrator.policies.failure import On
from trio_orchestrator.policies.herald import Herald
from trio_orchestrator.policies.verdict import FAILURE, NEUTRAL, Judge, Verdict
from trio_orchestrator.value import Changes

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CLOSED, OPEN, HALF_OPEN, ISOLATED = CircuitState


@final
@dataclass(frozen=True, slots=True)
class CircuitStatistics:
    """What a circuit breaker has seen. All counts since it was made."""

    state: CircuitState
    admitted: int
    """Calls let in: `successes + failures + neutral + late + in_flight`."""
    refused: int
    successes: int
    failures: int
    neutral: int
    """Calls that were cancelled, or refused by a policy further in."""
    late: int
    """Calls that ended after the circuit had changed, and so said nothing."""
    in_flight: int
    probes: int
    """How many probes are out."""
    openings: int
    """How often it has opened since it was last closed."""
    opens_in: float
    """Seconds until it may let a probe through; 0 if it is not open."""


@final
class CircuitBreaker(Policy):
    """Refuse calls while their dependency fails, and let a few probes find out when it works again.

    *Closed*, all calls pass and `trip` looks at how they end. *Open*, all are refused with `CircuitOpenError`, at once
    and without touching anything inside, for `cooldown` seconds. *Half-open*, at most `probes` calls are in flight,
    whoever asks in whatever order; `close_after` successes close it, a failure opens it again. *Isolated*, an operator
    holds it open.

    What a call comes to:

    * An exception covered by `on` is a failure. So is whatever a time-out of ours ended (`Timeout`, `attempt_timeout`,
      a queue's `timeout`), inside or outside the breaker and whatever `on` says: a service that hangs must open it.
    * Any other exception means that the dependency answered: a success.
    * A call that is cancelled by somebody else, refused by a policy further in, or ends with an exception covered by
      `neutral`, says nothing. A probe that ends so gives its place to another, and the state stays.
    * Of a group, each exception is judged: it is a failure if one of them is, and says nothing if all say nothing.
    * A call counts only if the circuit has not changed since it was let in: a slow success from before an outage closes
      nothing, a slow failure opens nothing.

    A probe has its place for `probe_lease` seconds; then another may take it, and if one did, what the first comes to
    no longer counts. So a probe that hangs does not shut the circuit for ever.

    It never waits: `with breaker.guard():` is sync, and `call` has the checkpoints of the function and no others. One
    breaker is shared by all calls to one dependency, also in one run of Trio after another: a cooldown that began in an
    earlier run is over. It does not end calls that take long: put a `Timeout` around them.

    Args:
        trip: When to open. Default: half of the calls of the last 10 seconds failed, of at least 10.
        cooldown: Seconds of refusing, > 0 and finite; or a `Backoff`, asked for the first, second, ... opening in a
            row, such as `Exponential(base=5, cap=300)`.
        probes: How many calls may be in flight while half-open, >= 1.
        probe_lease: Seconds after which a probe may be replaced, > 0. Default: the present cooldown, doubled each time
            a probe was replaced (to 1 at least, and 300 at most), so that slow calls get the time they need.
        close_after: So many successful probes close it, and one that fails opens it again. Or a fraction below 1: of
            `probes` results, that share must be successes.
        slow_call: A call that takes longer than so many seconds is slow, for a `SlowRatio`; a probe that is slow has
            failed.
        on: Which exceptions are failures: types, a tuple of them, or a predicate. Default: all.
        neutral: Which exceptions say nothing. Comes before `on`.
        classify: Says of a *result* whether it is a failure.
        ramp: Seconds after closing within which the share of calls that pass grows from none to all, so that those
            who waited do not all come at once.
        name: Shown in events, errors and `repr`.
        instruments: Hear `circuit_opened`, `circuit_half_opened`, `circuit_closed`, `circuit_isolated`: one event for
            each change, after it. They may call the breaker.
        rng: Draws jitter. Default: the library's.

    Raises:
        TypeError: An argument is of a wrong type; `slow_call` and `SlowRatio` go together, and one is missing.
        ValueError: An argument is out of its range.

    The pattern is Nygard's (Release It!, 2007). The defaults are between Polly's (10 % of 100 calls in 30 s, open for
    5 s) and resilience4j's (50 % of 100 calls, open for 60 s).
    """

    __slots__ = (
        "_cause",
        "_circuit",
        "_close_after",
        "_herald",
        "_judge",
        "_rules",
        "_simple",
        "_slow_call",
        "name",
    )

    def __init__(
        self,
        *,
        trip: Trip | None = None,
        cooldown: float | Backoff = 30.0,
        probes: int = 1,
        probe_lease: float | None = None,
        close_after: float = 1,
        slow_call: float = math.inf,
        on: On = Exception,
        neutral: On = (),
        classify: Callable[[Any], bool] | None = None,
        ramp: float = 0.0,
        name: str = "circuit",
        instruments: Sequence[Instrument] = (),
        rng: RandomSource | None = None,
    ) -> None:
        random_source("rng", rng)
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name must be a str, got {name!r}")
        self._close_after = close_after
        self._slow_call = above("slow_call", slow_call, 0)
        self._rules = circuit_rules(
            trip=trip,
            cooldown=cooldown,
            probes=probes,
            probe_lease=probe_lease,
            close_after=close_after,
            slow_call=self._slow_call,
            ramp=ramp,
            rng=rng,
        )
        self._judge = Judge(on, neutral, classify)
        self._simple = classify is None and slow_call == math.inf
        self.name: str = name
        self._circuit = Circuit(self._rules)
        self._cause: BaseException | None = None
        self._herald = Herald(name, instruments)

    def __repr__(self) -> str:
        circuit = self._circuit
        state = self.state if in_trio_run() else circuit.mode
        return f"<CircuitBreaker {self.name!r} {state.value}, {circuit.failures} of {circuit.admitted} failed>"

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        rules = self._rules
        return {
            "trip": rules.trip,
            "cooldown": rules.cooldown,
            "probes": rules.probes,
            "probe_lease": rules.probe_lease,
            "close_after": self._close_after,
            "slow_call": self._slow_call,
            **self._judge.parameters(),
            "ramp": rules.ramp,
            "name": self.name,
        }

    # ------------------------------------------------------------------------------------------------- calls

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)`, unless the circuit refuses, and return its result.

        Has the checkpoints of `fn` and adds none. Cancelling it cancels `fn`, and is neutral.

        Raises:
            CircuitOpenError: The circuit is open, or all its probes are out. `fn` was not called.
        """
        circuit = self._circuit
        if not (circuit.plain and self._simple):
            return await self._call_watched(self._admit(), fn, args)
        epoch = circuit.epoch
        circuit.admitted += 1
        try:
            result = await fn(*args)
        except BaseException as error:
            self._raised(Permit(epoch, 0.0), error)
            raise
        if epoch != circuit.epoch:
            circuit.late += 1
            return result
        circuit.successes += 1  # from here on `_succeeded`, without the price of a call
        if circuit.tally.record(current_time(), False, False):
            self._step(None, circuit.open, current_time())
        return result

    def _enter_plainly(self) -> int | None:
        """Let a call in and return its epoch, if there is nothing else to ask or to remember."""
        circuit = self._circuit
        if not (circuit.plain and self._simple):
            return None
        circuit.admitted += 1
        return circuit.epoch

    def _succeeded(self, epoch: int) -> None:
        """End such a call."""
        circuit = self._circuit
        if epoch != circuit.epoch:
            circuit.late += 1
            return
        circuit.successes += 1
        if circuit.tally.record(now := current_time(), False, False):
            self._step(None, circuit.open, now)

    async def _call_watched(self, permit: Permit, fn: Callable[[*Ts], Awaitable[T]], args: tuple[*Ts]) -> T:
        try:
            result = await fn(*args)
        except BaseException as error:
            self._raised(permit, error)
            raise
        self._returned(permit, result)
        return result

    def guard(self) -> CircuitGuard:
        """Return a guard around one call: `with breaker.guard():`, once. Sync; refuses on entry.

        The end of the block is the end of the call. A result that is a failure is told by `guard.fail()`, or judged by
        `guard.judge(result)`.
        """
        return CircuitGuard(self)

    def _admit(self) -> Permit:
        circuit = self._circuit
        epoch, now = circuit.epoch, current_time()
        answer = circuit.admit(now)
        if circuit.epoch != epoch:
            self._turned(None, now)
        if isinstance(answer, Refusal):
            raise CircuitOpenError(self.name, answer.state.value, retry_after=answer.retry_after) from self._cause
        return answer

    def _returned(self, permit: Permit, result: object) -> None:
        try:
            verdict = self._judge.of_result(result)
        except BaseException:
            self._settle(permit, None, NEUTRAL)
            raise
        self._settle(permit, None, verdict)

    def _raised(self, permit: Permit, error: BaseException) -> None:
        """Free the place of a call at once; its verdict may have to wait for a time-out of ours around it."""
        self._circuit.give_back(permit)
        if not isinstance(error, Exception):  # a time-out around us will make its own error
            self._judge.report(error, partial(self._settle, permit, None))
            return
        try:
            verdict = self._judge.of_error(error)
        except BaseException:  # a predicate of the user's
            self._settle(permit, None, NEUTRAL)
            raise
        self._settle(permit, error, verdict)

    def _settle(self, permit: Permit, error: BaseException | None, verdict: Verdict) -> None:
        now = current_time()
        slow = now - permit.started_at > self._slow_call
        failed = None if verdict is NEUTRAL else verdict is FAILURE
        self._step(error if failed else None, self._circuit.settle, permit, now, failed, slow)

    # -------------------------------------------------------------------------------------------- operators

    @property
    def state(self) -> CircuitState:
        """What it would do with a call now: an open circuit whose cooldown is over is half-open."""
        return self._circuit.state(current_time())

    @property
    def is_idle(self) -> bool:
        """Whether it differs in nothing from a new one: closed, nothing in flight, nothing remembered."""
        return self._circuit.is_idle(current_time())

    def statistics(self) -> CircuitStatistics:
        """Return its state and counts."""
        circuit, now = self._circuit, current_time()
        return CircuitStatistics(
            state=circuit.state(now),
            admitted=circuit.admitted,
            refused=circuit.refused,
            successes=circuit.successes,
            failures=circuit.failures,
            neutral=circuit.neutral,
            late=circuit.late,
            in_flight=circuit.in_flight,
            probes=len(circuit.out),
            openings=circuit.openings,
            opens_in=circuit.opens_in(now),
        )

    def isolate(self) -> Isolation:
        """Hold it open until the handle is released: for maintenance, by hand or `with breaker.isolate():`.

        Holds are counted: it stays isolated until every one is released. Then it does what it did before: a closed
        circuit is closed, an open one open until its time is over. Calls in flight say nothing any more.
        """
        self._hold(self._circuit.isolate)
        return Isolation(self)

    def reset(self) -> None:
        """Close it now, as if new. It does not end an isolation. Calls in flight say nothing any more."""
        circuit, now = self._circuit, current_time()
        before = circuit.mode
        circuit.close(now)
        if before is not CLOSED:
            self._turned(None, now, reset=True)

    def export(self) -> dict[str, float | str]:
        """Return its state as plain values, for `restore` after a restart. Isolation and the latest calls are left out.

        `state` is "closed" or "open"; `seconds` are left of the cooldown, `openings` were made in a row.
        """
        circuit = self._circuit
        if circuit.mode is CLOSED:
            return {"state": "closed"}
        return {"state": "open", "seconds": circuit.opens_in(current_time()), "openings": circuit.openings}

    def restore(self, state: Mapping[str, float | str], *, age: float = 0.0) -> None:
        """Take over what `export` returned, `age` seconds ago by the clock of the caller.

        Raises:
            TypeError: One of its numbers is none.
            ValueError: It is no state, or one of its numbers is out of range.
        """
        at_least("age", age, 0, finite=True)
        if not isinstance(cast("object", state), Mapping) or state.get("state") not in ("closed", "open"):
            raise ValueError(f"state must be what export() returned, got {state!r}")
        if state["state"] == "closed":
            self.reset()
        else:
            seconds = at_least("seconds", state.get("seconds"), 0, finite=True)
            openings = whole("openings", state.get("openings"))
            self._step(None, self._reopen, max(0.0, seconds - age), openings)

    def _reopen(self, seconds: float, openings: int) -> None:
        self._circuit.open(current_time(), seconds=seconds, openings=openings)

    async def wait_closed(self) -> None:
        """Wait until the circuit is closed. Always a checkpoint. Cancelling the wait changes nothing.

        It closes only if calls are made: somebody has to probe.
        """
        await self._herald.wait_closed()

    def changes(self) -> Changes[CircuitState]:
        """Iterate over its changes from now on: `async for state in breaker.changes():`. None is lost, however slow.

        What has not been taken is kept in memory for as long as the iterator lives.
        """
        return Changes(self._herald.news)

    # --------------------------------------------------------------------------------------------- changing

    def _step(self, error: BaseException | None, step: Callable[..., None], *args: object) -> None:
        """Do one step of the circuit, and tell if it has changed."""
        circuit = self._circuit
        epoch = circuit.epoch
        step(*args)
        if circuit.epoch != epoch:
            self._turned(error, current_time())

    def _hold(self, step: Callable[[], None]) -> None:
        circuit = self._circuit
        before = circuit.holds > 0
        step()
        if (circuit.holds > 0) is not before:
            self._herald.isolated(circuit)

    def _turned(self, error: BaseException | None, now: float, *, reset: bool = False) -> None:
        """Tell, once, that `mode` has changed."""
        if self._circuit.mode is not HALF_OPEN:
            self._cause = error
        self._herald.turned(self._circuit, error, now, reset=reset)
