"""What is asked of a server and of a client under measurement or under attack, with every answer checked."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, final

from benchmarks.redis_peers import LATE, Client, World
from trio_orchestrator.redis.wire import pack
from trio_orchestrator.testing.server import RedisServer

KNOWN: Final = 100
"""Keys with values that are known; who is given another one's reply has the wrong value."""
KEYS: Final = tuple(f"known:{n}" for n in range(KNOWN))
VALUES: Final = tuple(b"value of %d" % n for n in range(KNOWN))
STALL: Final = ("DEBUG", "SLEEP", "0.001")
STALLS: Final = 40.0
"""Stalls in a second of the load under cancels."""
LONGEST: Final = 0.002
"""Deadlines under cancels are drawn from 0 up to so many seconds."""
PAUSE: Final = 0.1
"""Pauses between calls under cancels are drawn from 0 up to so many seconds."""


class WrongReplyError(AssertionError):
    """A reply that belongs to somebody else, or to nobody."""


def fill(server: RedisServer) -> None:
    """Set the known keys."""
    server.command("MSET", *(word for pair in zip(KEYS, VALUES, strict=True) for word in pair))


@final
@dataclass
class Tally:
    """How calls ended."""

    answered: int = 0
    """With the right answer."""
    cancelled: int = 0
    wrong: int = 0
    """With somebody else's answer, or none."""
    errors: Counter[str] = field(default_factory=Counter)
    """What else they ended with, and how often."""

    @property
    def failed(self) -> int:
        """How many ended with an error."""
        return self.errors.total()

    @property
    def why(self) -> str:
        """The most frequent errors."""
        return ", ".join(f"{count}x {text}" for text, count in self.errors.most_common(3))

    @property
    def calls(self) -> int:
        """How many there were."""
        return self.answered + self.cancelled + self.failed + self.wrong

    def take(self, answer: Any, right: Any) -> None:
        """Count one call."""
        if answer is LATE:
            self.cancelled += 1
        elif answer == right:
            self.answered += 1
        else:
            self.wrong += 1

    def fail(self, error: Exception) -> None:
        """Count one call that ended with an error."""
        self.errors[f"{type(error).__name__}: {error!s:.60}"] += 1

    def check(self) -> None:
        """Raise if an answer was wrong."""
        if self.wrong:
            raise WrongReplyError(f"{self.wrong} of {self.calls} replies were wrong")


@contextmanager
def disturbed(server: RedisServer, every: float, *words: str) -> Iterator[list[Any]]:
    """Send a command again and again on a connection of its own, from a thread of its own; yield what is answered.

    Args:
        server: To whom.
        every: Seconds between the answer and the next one.
        words: The command.
    """
    over, answers = threading.Event(), list[Any]()
    with _connected(server) as plain:

        def disturb() -> None:
            while not over.wait(every):
                plain.sendall(pack(words))
                answers.append(plain.recv(1000))

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            yield answers
        finally:
            over.set()
            thread.join()


@contextmanager
def _connected(server: RedisServer) -> Iterator[socket.socket]:
    family = socket.AF_UNIX if isinstance(server.address, str) else socket.AF_INET
    with socket.socket(family) as plain:
        plain.settimeout(20)
        plain.connect(server.address)
        yield plain


async def cancelled_load(
    world: World, client: Client, *, seconds: float, pause: float, tasks: int, rng: Random
) -> Tally:
    """Get known keys in many tasks, each call with a deadline of 0 to 2 ms; return how they ended.

    Args:
        world: Of the client.
        client: Who is asked.
        seconds: No call begins later.
        pause: Seconds that a task pauses at most between two calls; 0: none does.
        tasks: How many.
        rng: Draws keys, deadlines and pauses.
    """
    tally, until = Tally(), time.perf_counter() + seconds

    async def task(_n: int) -> None:
        while time.perf_counter() < until:
            which = rng.randrange(KNOWN)
            try:
                tally.take(await world.attempt(rng.uniform(0, LONGEST), client.get, KEYS[which]), VALUES[which])
            except Exception as error:  # whatever a library raises
                tally.fail(error)
            if pause:
                await world.sleep(rng.uniform(0, pause))

    await world.together(tasks, task)
    return tally
