"""Lua scripts by their hash: the text goes to the server only when it does not have it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from trio_orchestrator.redis.method import Commands


@final
class Script:
    """A script that can be called. Made by `register_script`, which sends nothing: the hash is computed here.

    It is sent as EVALSHA. A server that does not have it (a new one, a replica that became master, after SCRIPT FLUSH)
    gets the text by EVAL at once: that is one call of yours, whichever it takes.

    Args:
        client: Who executes it, if the call names nobody else.
        script: Its text. A str is encoded as the client encodes.
    """

    __slots__ = ("registered_client", "script", "sha")

    def __init__(self, client: Commands, script: str | bytes) -> None:
        """Made by `redis.register_script()`."""
        self.registered_client: Commands = client
        self.script: str | bytes = script
        data = script if isinstance(script, bytes) else client.get_encoder().encode(script)
        self.sha: str = hashlib.sha1(data, usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        """Return its hash."""
        return f"<Script {self.sha}>"

    def __call__(
        self,
        keys: Iterable[Any] | None = None,
        args: Iterable[Any] | None = None,
        client: Commands | None = None,
        *,
        resend: bool = False,
        readonly: bool = False,
    ) -> Awaitable[Any]:
        """Execute the script: `await script(keys=["a"], args=[1])`. Given a pipeline as the client, queue it there.

        Args:
            keys: All keys that the script touches; a cluster finds the node by them.
            args: Its other arguments.
            client: Who executes it: another client, a pipeline, a transaction.
            resend: Whether it may run twice, so that it is sent again after a lost connection.
            readonly: Whether it only reads. The server holds it to that (EVALSHA_RO), a replica may execute it, and it
                is sent again after a lost connection.
        """
        executor = self.registered_client if client is None else client
        return executor.execute_script(self, tuple(keys or ()), tuple(args or ()), resend=resend, readonly=readonly)

    def command(self, keys: tuple[Any, ...], args: tuple[Any, ...], *, readonly: bool) -> tuple[Any, ...]:
        """Return the command that means it by its hash."""
        return ("EVALSHA_RO" if readonly else "EVALSHA", self.sha, len(keys), *keys, *args)

    def full_command(self, keys: tuple[Any, ...], args: tuple[Any, ...], *, readonly: bool) -> tuple[Any, ...]:
        """Return the command that brings its text, which the server keeps."""
        return ("EVAL_RO" if readonly else "EVAL", self.script, len(keys), *keys, *args)
