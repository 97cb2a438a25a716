"""The first words on a connection: protocol, user, name, database; then wait until the server is ready to answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import redis.exceptions
import trio
from redis.exceptions import BusyLoadingError, MasterDownError, NoPermissionError, RedisError, ResponseError

from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.connection import Connection
from trio_orchestrator.redis.error import LinkError
from trio_orchestrator.redis.wire import pack

Credentials: TypeAlias = Callable[[], Awaitable[tuple[str, ...]]]
"""Asked for each connection: () for none, (password,) or (user, password)."""

OLDEST: Final[Mapping[str, tuple[int, ...]]] = {"redis": (7, 0), "valkey": (7, 2)}
"""The oldest servers that answer all that is asked of them (RESP3, sharded pub/sub, EVALSHA_RO, CLUSTER SHARDS)."""

READY_EVERY: Final = 0.05
"""Seconds between questions to a server that is loading its data."""


class WrongRoleError(redis.exceptions.ConnectionError):
    """The server is no master, or no replica, though it was named as one."""


@final
@dataclass(frozen=True, slots=True)
class Handshake:
    """What is said first on each connection of a link."""

    credentials: Credentials
    database: int = 0
    name: str = ""
    role: str = ""
    """What `ROLE` must answer ("master", "slave"); empty: it is not asked."""
    first: Sequence[tuple[str | int, ...]] = ()
    """Further commands, none of which may fail (READONLY for a replica's link)."""

    async def greet(self, connection: Connection) -> None:
        """Say hello, and return once the server is ready. The caller bounds it in time.

        Raises:
            AuthenticationError: The server does not know the user, or the password is wrong.
            WrongRoleError: It is not what was wanted.
            RedisError: It refuses something else, or is too old.
        """
        replies = await connection.call(self._batch(self._commands(await self._credentials())))
        _check_version(_accepted(replies[0]))
        for reply in replies[3:]:
            _accepted(reply)
        await self._wait_ready(connection)

    async def _credentials(self) -> tuple[str, ...]:
        try:
            return await self.credentials()
        except (OSError, RedisError):
            raise
        except Exception as error:  # the user's provider: as good as a server that cannot be reached
            raise LinkError(f"the credential provider failed: {str(error) or type(error).__name__}") from error

    def _commands(self, credentials: tuple[str, ...]) -> list[tuple[str | int, ...]]:
        user = ("AUTH", *(("default", *credentials)[-2:])) if credentials else ()
        name = ("SETNAME", self.name) if self.name else ()
        database = [("SELECT", self.database)] if self.database else []
        return [
            ("HELLO", 3, *user, *name),
            ("CLIENT", "SETINFO", "LIB-NAME", "trio_orchestrator"),  # for people who look at the server; may fail
            ("CLIENT", "SETINFO", "LIB-VER", "0.1"),
            *database,
            *self.first,
        ]

    @staticmethod
    def _batch(commands: Sequence[tuple[str | int, ...]]) -> Call:
        call = Call(b"".join(map(pack, commands)))
        call.want, call.raw = len(commands), True
        call.answer = []
        return call

    async def _wait_ready(self, connection: Connection) -> None:
        while True:
            try:
                return self._check_role(await connection.call(self._question()))
            except (BusyLoadingError, MasterDownError):
                await trio.sleep(READY_EVERY)
            except NoPermissionError:  # it answers others, so it is ready
                if self.role:
                    raise
                return None

    def _question(self) -> Call:
        call = Call(pack(("ROLE",) if self.role else ("PING",)))
        call.raw = True
        return call

    def _check_role(self, reply: Any) -> None:
        role = reply[0].decode() if self.role else ""
        if role != self.role:
            raise WrongRoleError(f"the server says that its role is {role}, not {self.role}")


def _accepted(reply: Any) -> Any:
    if isinstance(reply, RedisError):
        raise reply
    return reply


def _check_version(hello: Mapping[bytes, Any]) -> None:
    server, version = (hello.get(key, b"").decode() for key in (b"server", b"version"))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    oldest = OLDEST.get(server, ())
    if numbers < oldest:
        least = ".".join(map(str, oldest))
        raise ResponseError(f"{server} {version} is too old: at least {least} is needed")
