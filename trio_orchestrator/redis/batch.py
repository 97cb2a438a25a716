"""Several commands sent as one: what a pipeline has collected, whom it hands it to, and the call that carries it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

import redis.utils
from redis.exceptions import ExecAbortError, NoScriptError, ReadOnlyError, ResponseError, WatchError

from trio_orchestrator.redis.call import NO_ANSWER, Call
from trio_orchestrator.redis.command import Kind
from trio_orchestrator.redis.link import may_have_run_in_part
from trio_orchestrator.redis.wire import pack, reply_error

_MULTI: Final = pack(("MULTI",))
_EXEC: Final = pack(("EXEC",))
_words: Final[Any] = redis.utils  # which has no types
_BECAUSE: Final = "because of: "


@final
@dataclass(slots=True, eq=False)
class Queued:
    """One command of a batch: checked, and packed once."""

    args: tuple[Any, ...]
    """The command, its name first."""
    options: dict[str, Any]
    """What redis-py's callbacks are given."""
    kind: Kind
    data: bytes
    """The command on the wire."""
    raw: bool = False
    """Whether its reply must not be decoded (DUMP)."""
    script: str | bytes | None = None
    """The text of the script that an EVALSHA means; the server is given it before, in the same write."""


class PipelineHost(Protocol):
    """Who executes what a `Pipeline` has collected: a link, a connection of one's own, a cluster."""

    def admit(self, args: tuple[Any, ...]) -> Kind:
        """Look at a command that is to be queued; return its kind. Sync, and called once for each.

        Raises:
            RefusedCommandError: It may not go where the batch will go; it is not queued.
        """
        ...

    async def run_batch(self, batch: Sequence[Queued], *, transaction: bool, resend: bool) -> list[Any]:
        """Send all commands; return their replies in order, as they came: an exception where the reply is an error.

        `Batch` does the work for one server: `await link.call(call := Batch(batch, ...))`, then `call.replies()`. A
        transaction in which any command is `raw` returns all replies undecoded.

        Args:
            batch: At least one command.
            transaction: Whether MULTI and EXEC go around them.
            resend: Whether it may run twice. Also true of a batch that only reads, without being said.

        Raises:
            LinkError: The connection was lost, and some or all may have run (`sent`).
            CallTimeoutError: No answer in time.
            ResponseError: A transaction was not executed. It is the error of the command that was not accepted,
                annotated with its number; nothing has run.
            WatchError: A transaction was not executed, since a key that was watched has changed.
        """
        ...


@final
class Batch(Call):
    """The call that carries a batch to one server: one write, one row of replies.

    Args:
        batch: At least one command.
        transaction: Whether MULTI and EXEC go around them.
        resend: Whether it may run twice.
    """

    want = 0

    def __init__(self, batch: Sequence[Queued], *, transaction: bool = False, resend: bool = False) -> None:
        self.batch: Sequence[Queued] = batch
        self.transaction: bool = transaction
        self._scripts = list(dict.fromkeys(item.script for item in batch if item.script is not None))
        loads = [pack(("SCRIPT LOAD", script)) for script in self._scripts]
        commands = [item.data for item in batch]
        if transaction:
            commands = [_MULTI, *commands, _EXEC]
        super().__init__(b"".join(loads + commands))
        self.atomic = transaction
        self.resend: bool = resend or all(item.kind.reads or item.options.get("resend", False) for item in batch)
        self._before = len(loads) + transaction
        self._due = len(loads) + len(batch) + 2 * transaction
        self._raw = self._raw_replies()
        self.restart()

    def _raw_replies(self) -> frozenset[int]:
        """Return which replies are left undecoded, by their number."""
        raw = [self._before + number for number, item in enumerate(self.batch) if item.raw]
        return frozenset([self._due - 1] if raw and self.transaction else raw)

    def restart(self) -> None:
        """Forget the replies that came, since it is sent again."""
        super().restart()
        self.raw: bool = 0 in self._raw

    def take(self, reply: Any) -> bool:
        """Add a reply; return whether it was the last."""
        if self.answer is NO_ANSWER:
            self.answer: Any = []
        self.answer.append(reply)
        count = len(self.answer)
        if self._raw:
            self.raw = count in self._raw
        return count == self._due

    def refusals(self, refuses: Callable[[ResponseError], bool]) -> int:
        """Return how many commands were refused with an error of a kind; those did not run.

        One such command is enough for a transaction to be refused as a whole.
        """
        if not self.transaction:
            return _count(self.answer[self._before :], refuses)
        result = self.answer[-1]
        if not isinstance(result, Exception):
            return _count(result or (), refuses)
        return len(self.batch) if _count([*self.answer, abort_reason(result)], refuses) else 0

    def may_have_run(self) -> bool:
        """Return whether a script is in it whose error may be its own, after it has done something."""
        results: Any = self.answer[-1] if self.transaction else self.answer[self._before :]
        if isinstance(results, Exception):  # a transaction that was not accepted
            return False
        replies: list[Any] = results or []
        pairs = zip(self.batch, replies, strict=True)
        return any(may_have_run_in_part(item.data) and not isinstance(reply, ReadOnlyError) for item, reply in pairs)

    def replies(self) -> list[Any]:
        """Return what each command was answered, errors as exceptions.

        Raises:
            ResponseError: The transaction was not executed, and why.
            WatchError: It was not executed, since a watched key has changed.
        """
        replies: list[Any] = self._executed() if self.transaction else self.answer[self._before :]
        return self._explained(replies) if self._scripts else replies

    def _executed(self) -> list[Any]:
        result = self.answer[-1]
        if result is None:
            raise WatchError("Watched variable changed.")
        if isinstance(result, Exception):
            raise self._refusal(result) from result
        replies: list[Any] = result
        return replies

    def _refusal(self, abort: Exception) -> Exception:
        """Return why a transaction was not executed: what the server said against MULTI, or the first command."""
        for number, reply in enumerate(self.answer[self._before - 1 : -1]):
            if isinstance(reply, Exception):
                return annotated(reply, number, self.batch[number - 1].args) if number else reply
        return abort_reason(abort)

    def _explained(self, replies: list[Any]) -> list[Any]:
        """Return the replies, with the error of the script itself where it could not be loaded."""
        loads: dict[Any, Any] = dict(zip(self._scripts, self.answer, strict=False))
        failed = {script: load for script, load in loads.items() if isinstance(load, Exception)}
        return [
            failed.get(item.script, reply) if isinstance(reply, NoScriptError) else reply
            for item, reply in zip(self.batch, replies, strict=True)
        ]


def _count(replies: Iterable[Any], refuses: Callable[[ResponseError], bool]) -> int:
    return sum(isinstance(reply, ResponseError) and refuses(reply) for reply in replies)


def abort_reason(abort: Exception) -> Exception:
    """Return the error that EXECABORT names as its reason ("... discarded because of: READONLY ..."), or itself."""
    _, because, reason = str(abort).partition(_BECAUSE)
    return reply_error(reason) if isinstance(abort, ExecAbortError) and because else abort


def annotated(error: Exception, number: int, args: Sequence[Any]) -> Exception:
    """Return the error with the number and the text of its command in its message, as redis-py words it."""
    command = _words.truncate_text(" ".join(map(_words.safe_str, args)))
    error.args = (f"Command # {number} ({command}) of pipeline caused error: {error.args}", *error.args[1:])
    return error


def raise_first(batch: Sequence[Queued], replies: Sequence[Any]) -> None:
    """Raise the first error among the replies, annotated; if there is none, return."""
    for number, reply in enumerate(replies, 1):
        if isinstance(reply, Exception):
            raise annotated(reply, number, batch[number - 1].args)
