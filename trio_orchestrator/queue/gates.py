"""Gates: an outage must not burn the backlog.

A gate holds back the jobs that would only be refused. It is shut by a refusal (an open circuit, a rate limit), or, as
part of a `Cooldown`, by a server that said `Retry-After`; it opens by itself. Decisions are pure: windows expire when
read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import final

import trio

from trio_orchestrator.abc import RandomSource
from trio_orchestrator.algorithms.argument import above, at_least, random_source
from trio_orchestrator.algorithms.backoff import FullJitter
from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.algorithms.ramp import Ramp

_UNKNOWN = FullJitter(base=1.0, cap=30.0)
_MOST_IDLE_GATES = 1024


@final
class Gate:
    """Holds jobs back for a time; may be shared by queues and by other code.

    After a known time it opens for all, over `ramp` seconds: then at most `max(1, floor(limit * elapsed / ramp))` jobs
    have passed, and each step is late by a random part of itself, so that many processes do not move in step. After an
    unknown time (a random one of at most 1, 2, 4 ... 30 s) one job goes first, and its success opens the gate for all.
    It goes at once when a call that had been let in before succeeds meanwhile.

    Args:
        name: Shown in statistics, logs and warnings.
        ramp: Seconds over which it reopens, >= 0. 0 lets all through at once.
        rng: The source of jitter. Default: the library's.
    """

    __slots__ = (
        "_listeners",
        "_passed",
        "_probing",
        "_ramp",
        "_refusals",
        "_reopening",
        "_rng",
        "_step",
        "_until",
        "name",
    )

    def __init__(self, name: str = "gate", *, ramp: float = 0.0, rng: RandomSource | None = None) -> None:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name must be a str, got {name!r}")
        random_source("rng", rng)
        self.name: str = name
        self._ramp = at_least("ramp", ramp, 0, finite=True)
        self._rng: RandomSource = rng if rng is not None else CHANCE
        self._until = -math.inf  # shut before this time
        self._probing = False  # one job first, whose success opens
        self._refusals = 0  # in a row, without a known time
        self._reopening: Ramp | None = None
        self._passed = 0  # since it reopened
        self._step = -math.inf  # the next job of the ramp may pass then
        self._listeners: list[Callable[[Gate], None]] = []

    def __repr__(self) -> str:
        return f"<Gate {self.name!r} {'probing' if self._probing else 'shut' if self._until > -math.inf else 'open'}>"

    # ---------------------------------------------------------------------------------------------- shutting

    def shut(self, seconds: float) -> None:
        """Shut it for so long from now; a gate that is shut for longer stays so. 0 changes nothing. Sync.

        Raises:
            ValueError: `seconds` is negative, infinite or NaN.
        """
        at_least("seconds", seconds, 0, finite=True)
        until = trio.current_time() + seconds
        if seconds > 0 and (until > self._until or self._probing):
            self._until = until if self._until == math.inf else max(until, self._until)  # inf: one job went first
            self._probing, self._refusals, self._passed = False, 0, 0
            self._reopening = Ramp(self._until, self._ramp) if self._ramp else None
            self._step = self._until
            self._tell()

    def refused(self, retry_after: float, *, first: bool = True) -> float:
        """Shut it because a call was refused; return for how long, as far as is known. Sync.

        Args:
            retry_after: Seconds until another may be let in; `math.inf`, or 0, if that is not known.
            first: Whether it may have been the one that went first. While that one is out, a refusal of another, older
                call says nothing new.
        """
        if 0 < retry_after < math.inf:
            self.shut(retry_after)
            return retry_after
        now = trio.current_time()
        if self._probing and now < self._until < math.inf:
            return self._until - now  # shut already: refusals of one outage count once
        if self._until > now and not (self._probing and first):
            return self._until - now
        self._refusals += 1
        pause = _UNKNOWN(self._refusals, self._rng)
        self._until, self._probing, self._reopening = now + pause, True, None
        self._tell()
        return pause

    def answered(self, *, success: bool | None) -> None:
        """Tell the outcome of the one job that went first: None if it was cancelled. Sync."""
        if not self._probing or self._until < math.inf:
            return
        if success:
            self._probing, self._refusals, self._until = False, 0, -math.inf
            self._tell()
        elif success is None:
            self._until = trio.current_time()
            self._tell()
        else:
            self._until = -math.inf
            self.refused(math.inf)

    def encouraged(self) -> None:
        """Hear that a call which had been let in before has succeeded. Sync.

        A gate that is shut for an unknown time lets one job go first now: what refused the others may have a place
        again, or the probe that they waited for has come back.
        """
        if self._probing and trio.current_time() < self._until < math.inf:
            self._until = trio.current_time()
            self._tell()

    # --------------------------------------------------------------------------------------------- passing

    @property
    def is_open(self) -> bool:
        """Whether it lets everybody through, and has nothing to count."""
        return self._until == -math.inf and self._reopening is None and not self._probing

    @property
    def in_use(self) -> bool:
        """Whether it has something to say, or somebody listens."""
        return bool(self._listeners) or not self.is_open

    @property
    def probing(self) -> bool:
        """Whether one job goes first, or will when the time is over."""
        return self._probing

    def opens_at(self, now: float) -> float:
        """Return when the next job may pass: not after `now` if one may now, `math.inf` if not known."""
        return self._until if self._reopening is None else max(self._until, self._step)

    def passed(self, limit: float, now: float) -> None:
        """Count a job that passes at `now`, where at most `limit` may run at once."""
        if self._probing:
            self._until = math.inf  # until its outcome is known
            self._tell()
        elif self._reopening is not None:
            self._passed += 1
            self._pace(self._reopening, limit, now)
        else:
            self._until = -math.inf

    def _pace(self, ramp: Ramp, limit: float, now: float) -> None:
        allowed = ramp.allowed(limit, now)
        if allowed == math.inf:
            self._reopening, self._until = None, -math.inf
        elif self._passed >= allowed:
            step = ramp.next_step(limit, now)
            width = ramp.seconds / limit if 0 < limit < math.inf else 0.0
            self._step = step + width * self._rng.random()
            self._tell()

    async def wait_open(self, *, limit: float = 10) -> None:
        """Wait until one call may pass, and count it: for code that calls the same server outside a queue.

        During a ramp, `limit` is how many calls of this kind usually run at once. Always a checkpoint. Cancelling the
        wait changes nothing.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        above("limit", limit, 0)
        changed = trio.Event()

        def listen(_: Gate) -> None:
            changed.set()

        self._listeners.append(listen)
        try:
            while (at := self.opens_at(now := trio.current_time())) > now:
                with trio.move_on_at(at):
                    await changed.wait()
                changed = trio.Event()
            self.passed(limit, now)
        finally:
            self._listeners.remove(listen)
        await trio.lowlevel.cancel_shielded_checkpoint()

    # ------------------------------------------------------------------------------------------- listening

    def listen(self, listener: Callable[[Gate], None]) -> None:
        """Have `listener(gate)` called whenever the gate is shut, by a passing job too, or opened before its time."""
        self._listeners.append(listener)

    def forget(self, listener: Callable[[Gate], None]) -> None:
        """Undo `listen`."""
        self._listeners.remove(listener)

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener(self)


@final
class Cooldown:
    """`Retry-After` of one job holds back the others: a gate for each key, driven by the server.

    Share one among the queues (and other code) that call the same servers. A queue with `cooldown=` shuts the gate of a
    job's `key` for as long as the job's retry was told to wait; while it is shut, jobs of that key neither start nor
    use an attempt. It reopens over `ramp` seconds.

    Args:
        ramp: Seconds over which a gate reopens, >= 0.
        rng: The source of jitter. Default: the library's.
    """

    __slots__ = ("_gates", "_prune_at", "_ramp", "_rng")

    def __init__(self, *, ramp: float = 1.0, rng: RandomSource | None = None) -> None:
        self._gates: dict[Hashable, Gate] = {None: Gate("cooldown", ramp=ramp, rng=rng)}
        self._ramp = ramp
        self._rng = rng
        self._prune_at = _MOST_IDLE_GATES

    def __repr__(self) -> str:
        return f"<Cooldown {len(self._gates)} gates, ramp {self._ramp:g} s>"

    def gate(self, key: Hashable = None) -> Gate:
        """Return the gate of `key`; None is the gate of all calls without a key.

        The same object while it is shut or in use: when there are many, a cooldown forgets the others.
        """
        gate = self._gates.get(key)
        if gate is None:
            if len(self._gates) >= self._prune_at:
                self._prune()
            gate = self._gates[key] = Gate(f"cooldown of {key!r}", ramp=self._ramp, rng=self._rng)
        return gate

    def _prune(self) -> None:
        self._gates = {key: gate for key, gate in self._gates.items() if key is None or gate.in_use}
        self._prune_at = max(_MOST_IDLE_GATES, 2 * len(self._gates))
