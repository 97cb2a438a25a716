"""A dependency dies and comes back: what retry, circuit breaker and rate limiter make of it, second by second.

Run it: python examples/outage.py            (two minutes of virtual time, in a moment)
        python examples/outage.py --naive    (the same with retries only)
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field

import trio
from trio.testing import MockClock

from trio_orchestrator import (
    CircuitBreaker,
    CircuitClosed,
    CircuitHalfOpened,
    CircuitOpened,
    CircuitOpenError,
    Consecutive,
    Exponential,
    FullJitter,
    Instrument,
    RateLimiter,
    Retry,
    RetryBudget,
    Stack,
    Timeout,
)

DIES, RETURNS, END = 10.0, 40.0, 60.0
CALLS_A_SECOND = 20


@dataclass
class Dependency:
    """Answers in 50 ms; while it is down, every other call is refused at once, and the rest hang."""

    calls: Counter[int] = field(default_factory=Counter)

    async def __call__(self) -> str:
        now = trio.current_time()
        self.calls[int(now)] += 1
        if DIES <= now < RETURNS:
            if self.calls[int(now)] % 2:
                raise ConnectionRefusedError
            await trio.sleep_forever()
        await trio.sleep(0.05)
        return "answer"


class Narrator(Instrument):
    """Keeps what the circuit breaker says, by second."""

    def __init__(self) -> None:
        self.lines: dict[int, list[str]] = {}

    def _say(self, text: str) -> None:
        self.lines.setdefault(int(trio.current_time()), []).append(text)

    def circuit_opened(self, event: CircuitOpened, /) -> None:
        """A probe failed, or too many calls did."""
        self._say(f"opened for {event.cooldown:g} s")

    def circuit_half_opened(self, event: CircuitHalfOpened, /) -> None:
        """One call goes to see."""
        self._say("a probe goes")

    def circuit_closed(self, event: CircuitClosed, /) -> None:
        """It works again."""
        self._say(f"closed after {event.open_for:.1f} s")


def careful(narrator: Narrator) -> Stack:
    """Return the stack of the example: the retry outside, so that each attempt asks the breaker and the limiter."""
    return Stack(
        Retry(on=(OSError, trio.TooSlowError), attempts=3, backoff=FullJitter(base=0.5, cap=5)),
        RetryBudget(minimum_per_second=1),
        CircuitBreaker(trip=Consecutive(5), cooldown=Exponential(base=2, cap=10), ramp=3, instruments=[narrator]),
        RateLimiter(50, burst=10),
        Timeout(1),
    )


def naive() -> Stack:
    """Return what is often written: try five times, at once."""
    return Stack(Retry(on=(OSError, trio.TooSlowError), attempts=5, backoff=FullJitter(base=0)), Timeout(1))


@dataclass
class Seconds:
    """What became of the calls, by the second in which they ended."""

    answered: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    failed: Counter[int] = field(default_factory=Counter)

    async def user(self, stack: Stack, dependency: Dependency) -> None:
        """Make one call."""
        ended = self.failed
        try:
            await stack.call(dependency)
            ended = self.answered
        except CircuitOpenError:
            ended = self.refused
        except (OSError, trio.TooSlowError):
            pass
        ended[int(trio.current_time())] += 1


async def main(stack: Stack, dependency: Dependency) -> Seconds:
    """Let users come at a steady rate, and return what became of them."""
    seconds = Seconds()
    async with trio.open_nursery() as nursery:
        for number in range(int(END) * CALLS_A_SECOND):
            await trio.sleep_until(number / CALLS_A_SECOND)
            nursery.start_soon(seconds.user, stack, dependency)
    return seconds


def timeline(seconds: Seconds, dependency: Dependency, narrator: Narrator) -> None:
    """Print what happened, a line a second where anything is new."""
    print(f"{'second':>6} {'calls made':>10} {'answered':>8} {'refused':>8} {'failed':>6}")
    last = None
    for second in range(int(END)):
        row = dependency.calls[second], seconds.answered[second], seconds.refused[second], seconds.failed[second]
        notes = ", ".join(narrator.lines.get(second, ()))
        if row != last or notes:
            print("{:>6} {:>10} {:>8} {:>8} {:>6}  {}".format(second, *row, notes).rstrip())
        last = row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--naive", action="store_true", help="retries only")
    narrator, dependency = Narrator(), Dependency()
    stack = naive() if parser.parse_args().naive else careful(narrator)
    print(stack.explain(), end="\n\n")
    outcome = trio.run(main, stack, dependency, clock=MockClock(autojump_threshold=0))
    timeline(outcome, dependency, narrator)
    during = sum(dependency.calls[second] for second in range(int(DIES), int(RETURNS)))
    asked = int(RETURNS - DIES) * CALLS_A_SECOND
    print(f"\nWhile it was down, {asked} users asked, and {during} calls reached it.")
