"""From the reply on the wire to what redis-py's methods return: by redis-py's own callbacks."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from redis.client import EMPTY_RESPONSE, NEVER_DECODE
from redis.exceptions import DataError

from trio_orchestrator.redis.settings import Target
from trio_orchestrator.redis.wire import pack


@final
class Answers:
    """How one client packs its arguments, and what it makes of replies."""

    __slots__ = ("_callbacks", "encoder", "pack", "shapes")

    def __init__(self, target: Target) -> None:
        self._callbacks: dict[str, Callable[..., Any]] = dict(target.callbacks)
        self.encoder: Any = target.encoder
        """redis-py's own; its commands ask for it."""
        self.shapes: Mapping[str, Any] = target.shapes
        """What redis-py's own client would have been told about how answers are to look."""
        plain = codecs.lookup(target.encoding).name == "utf-8" and target.encoding_errors == "strict"
        self.pack: Callable[[Sequence[Any]], bytes] = pack if plain else self._pack_encoded
        """Make the bytes of a command from its arguments."""

    def _pack_encoded(self, args: Sequence[Any]) -> bytes:
        try:
            encode = self.encoder.encode
            return pack((args[0], *(encode(arg) if isinstance(arg, str) else arg for arg in args[1:])))
        except UnicodeEncodeError as error:
            raise DataError(f"arguments must be encodable as {self.encoder.encoding}: {error}") from error

    def set_callback(self, name: str, callback: Callable[..., Any]) -> None:
        """Have the replies to a command go through `callback(reply, **options)`."""
        self._callbacks[name.upper()] = callback

    def is_raw(self, options: dict[str, Any]) -> bool:
        """Return whether the reply must not be decoded."""
        return NEVER_DECODE in options

    def of_refusal(self, error: Exception, options: dict[str, Any]) -> Any:
        """Return what stands for an error reply, if its caller has said so; else raise it."""
        if EMPTY_RESPONSE in options:
            return options[EMPTY_RESPONSE]
        raise error

    def shape(self, name: Any, reply: Any, options: dict[str, Any]) -> Any:
        """Return what redis-py's method returns for a reply; a coroutine of it, if a callback of the user's waits."""
        callback = self.callback(name)
        if callback is None:
            return reply
        if options:
            for ours in _OURS:
                options.pop(ours, None)
        return callback(reply, **options)

    def callback(self, name: Any) -> Callable[..., Any] | None:
        """Return what the replies to a command go through, if anything; as in redis-py, of a name in bytes nothing."""
        callback = self._callbacks.get(name)
        if callback is None and not name.isupper():
            return self._callbacks.get(name.upper())
        return callback


_OURS = (EMPTY_RESPONSE, NEVER_DECODE, "keys", "resend")
