"""One request and its answer: what waits in the outbox, then in the conversation, until the reader fills it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import outcome
import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

if TYPE_CHECKING:
    from trio_orchestrator.redis.conversation import Conversation

NO_ANSWER: Any = object()


class Call:
    """Some bytes to send, and the reply, or replies, that the server owes for them.

    Attributes have their defaults in the class, because most calls never set most of them.
    """

    want: int = 1
    """How many replies belong to it; 0: it decides by `take`."""
    raw: bool = False
    """Whether the reply is left undecoded."""
    posted: bool = False
    """Nobody waits: it is sent all the same, and its reply is thrown away."""
    resend: bool = False
    """Whether it may be sent again after it may have run."""
    tried: bool = False
    """Whether it was sent on a connection that was lost, so that it may have run, and is sent again."""
    atomic: bool = True
    """Whether the server runs all of it or nothing, so that a part of it that was sent has done nothing."""
    counted: bool = False
    """Whether it has a place in the window of its outbox now."""
    task: Task | None = None
    """Who waits; None once the answer is there, or the waiter gave up."""
    conversation: Conversation | None = None
    """In whose row it is."""
    end: int = 0
    """Where it ends in the bytes of its connection."""
    started: float = 0.0
    """When it was made, on Trio's clock."""
    answer: Any = NO_ANSWER
    """The reply; the list of replies; or the exception that ended the call."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, reply: Any) -> bool:
        """Add one of several replies; return whether it was the last."""
        if self.answer is NO_ANSWER:
            self.answer = []
        self.answer.append(reply)
        return len(self.answer) == self.want

    def restart(self) -> None:
        """Forget the connection, and the replies that came before it was lost: it is sent again."""
        self.conversation = None
        self.answer = NO_ANSWER

    def settle(self, answer: Any) -> None:
        """Give the waiter its answer, if it still waits. Sync."""
        task = self.task
        if task is not None:
            self.task = None
            self.answer = answer
            reschedule(task)

    def end_late(self, error: Exception) -> None:
        """End the waiting with an error. The replies that came are kept, since the rest of them is still owed. Sync."""
        task = self.task
        if task is not None:
            self.task = None
            reschedule(task, outcome.Error(error))

    def give_up(self, _raise_cancel: object = None) -> Abort:
        """Take the reply if it is here by now; else leave the place in the row to nobody, and it is thrown away."""
        if self.conversation is not None:
            self.conversation.look()
            if self.task is None:
                return Abort.FAILED  # it has its answer
        self.task = None
        return Abort.SUCCEEDED

    async def wait(self) -> Any:
        """Wait for the answer; raise it if it is an exception. Whoever queued the call has set its task."""
        await wait_task_rescheduled(self.give_up)
        answer = self.answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def begin(self) -> None:
        """Note who waits, and since when."""
        self.task = current_task()
        self.started = trio.current_time()
