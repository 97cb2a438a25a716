"""What one subscribes to: channels, patterns, shard channels; and the call that asks the server for some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

from redis.exceptions import InvalidResponse, NoPermissionError, PubSubError

from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.wire import pack

CHANNEL: Final = b"message"
PATTERN: Final = b"pmessage"
SHARD: Final = b"smessage"


class Topic(NamedTuple):
    """A channel, a pattern or a shard channel."""

    kind: bytes
    """The kind of its messages: `CHANNEL`, `PATTERN` or `SHARD`."""
    name: bytes

    def verb(self, *, wanted: bool) -> bytes:
        """Return the command, in lower case as in its confirmation, that subscribes to it, or ends that."""
        return self.kind[: -len(CHANNEL)] + (b"subscribe" if wanted else b"unsubscribe")


CONFIRMATIONS: Final = {
    Topic(kind, b"").verb(wanted=wanted): (kind, wanted)
    for kind in (CHANNEL, PATTERN, SHARD)
    for wanted in (True, False)
}
"""By the first word of a confirming push: the kind of its topic, and whether it was subscribed to."""


@final
class Ask(Call):
    """Subscribe to some topics of one kind, or unsubscribe from them, and a PING behind that in the same write.

    The server confirms with a push a topic and no reply, or refuses all of them with a reply and no push. The PING,
    whose argument is unique, always has a reply, be it a refusal too: so what comes first after all pushes is its
    reply, and an error that comes before them is the refusal.

    Args:
        verb: As `Topic.verb` has it.
        topics: What for; at least one, all of the kind that belongs to the verb.
        number: Makes it unique on its connection.
        answered: Called when it is over.
    """

    want = 0

    def __init__(self, verb: bytes, topics: Sequence[Topic], number: int, answered: Callable[[Ask], None]) -> None:
        self.verb: bytes = verb
        self.topics: Sequence[Topic] = topics
        self.unconfirmed: set[Topic] = set(topics)
        """Those whose push has not come."""
        self.refusal: Exception | None = None
        """The error of the server."""
        self._token = b"%s-%d" % (verb, number)
        self._answered = answered
        self._over = False
        super().__init__(pack((verb.upper(), *(topic.name for topic in topics))) + pack(("PING", self._token)))

    @property
    def subscribes(self) -> bool:
        """Whether it subscribes, or ends that."""
        return CONFIRMATIONS[self.verb][1]

    def take(self, reply: Any) -> bool:
        """Take the refusal, or the reply to the PING."""
        refused = isinstance(reply, Exception)
        if refused and self.unconfirmed and self.refusal is None:
            self.refusal = reply
            return False
        if not refused and reply != self._token:
            raise InvalidResponse(f"{self._token!r} was to be echoed, got {reply!r:.100}")
        if self.unconfirmed and self.refusal is None:
            self.refusal = PubSubError(f"{self.verb.decode()} was neither confirmed nor refused")
        self._over = True
        return True

    def settle(self, answer: Any) -> None:
        """Tell that it is over, now that it has left the row: whoever is told may end the connection."""
        if self._over:
            self._answered(self)


def explained(refusal: Exception, verb: bytes, topic: Topic) -> Exception:
    """Return a refusal that names the ACL rule that the user lacks, if that is what it is about."""
    if not isinstance(refusal, NoPermissionError):
        return refusal
    rule = f"+{verb.decode()}" if " command" in str(refusal) else f"&{topic.name.decode(errors='backslashreplace')}"
    return NoPermissionError(f"{refusal} (the user needs the ACL rule {rule!r})")
