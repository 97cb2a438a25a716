"""One way through a fault proxy: what happens to the bytes on it."""

from __future__ import annotations

import math
import random
from typing import TypeAlias, final

import trio

from trio_orchestrator.algorithms.argument import at_least, count

Piece: TypeAlias = float | tuple[int, int]


@final
class Direction:
    """One way through a `FaultProxy`, of all its connections: `proxy.requests` or `proxy.replies`. Made by it."""

    def __init__(self, rng: random.Random) -> None:
        """Made by `open_fault_proxy`."""
        self._rng = rng
        self._delay = 0.0
        self._piece: Piece = math.inf
        self._held = False
        self._left = math.inf
        self._cut_resets = True
        self._lot = trio.lowlevel.ParkingLot()
        self.dead: bool = False
        """Whether what is sent this way is swallowed, and the end of the stream too, while connections stay open."""
        self.arrived: int = 0
        """How many bytes have arrived here, in all connections: passed, swallowed, and still on the way."""
        self.chunks: int = 0
        """In how many chunks they have arrived: what is sent together is one, up to 64 KiB, if the kernel lets it."""
        self.passed: int = 0
        """How many bytes have passed, in all connections."""
        self.swallowed: int = 0
        """How many bytes were swallowed."""

    @property
    def delay(self) -> float:
        """Seconds between the arrival of bytes and their passing on, >= 0. The order is kept.

        A new value holds for what arrives from then on.
        """
        return self._delay

    @delay.setter
    def delay(self, value: float) -> None:
        self._delay = at_least("delay", value, 0, finite=True)

    @property
    def piece(self) -> Piece:
        """The most bytes that are sent at once, >= 1: 1 is byte by byte, `math.inf` is as they come.

        A pair `(least, most)` draws each size from both and all between. Other tasks run between two pieces, so that
        a reader usually sees them one by one; the kernel may join them again.
        """
        return self._piece

    @piece.setter
    def piece(self, value: Piece) -> None:
        if isinstance(value, tuple):
            least, most = value
            count("piece[0]", least, 1)
            count("piece[1]", most, int(least))
        else:
            count("piece", value, 1)
        self._piece = value

    @property
    def held(self) -> bool:
        """Whether nothing passes for now. Nothing is lost: it passes as soon as this is False again."""
        return self._held

    @held.setter
    def held(self, value: bool) -> None:
        self._held = value
        if not value:
            self._lot.unpark_all()

    def cut_after(self, n: float, *, reset: bool = True) -> None:
        """End the connection on which the n-th byte from now passes this way, right behind that byte. Once.

        Bytes of all connections count. With n = 0 it ends when the next bytes arrive here, and they do not pass.

        Args:
            n: How many bytes may still pass, >= 0; `math.inf` takes the order back.
            reset: Whether it ends with RST on both sides, so that what the other side has not read may be lost; else
                both are closed.
        """
        self._left = count("n", n, 0)
        self._cut_resets = reset

    def mend(self) -> None:
        """Take all faults of this direction back."""
        self.delay, self.piece, self.dead, self._left = 0.0, math.inf, False, math.inf
        self.held = False

    async def _wait_free(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._held:
            await self._lot.park()

    def _next_size(self, available: int) -> int:
        """Return how many of `available` bytes may be sent at once."""
        if not self._left:
            return available
        piece = self._rng.randint(*self._piece) if isinstance(self._piece, tuple) else self._piece
        return int(min(piece, self._left, available))

    def _is_last(self, size: int) -> bool:
        """Take `size` bytes from what may still pass; return whether the cut comes right after them."""
        self._left -= size
        if self._left > 0:
            return False
        self._left = math.inf
        return True
