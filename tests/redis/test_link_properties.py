"""Any tasks on one link, with any trouble at any time: each reply to whom it belongs, each write at most once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.redis.scripted import ScriptedServer, batch, command, encode, nest, open_scripted, open_server
from trio_orchestrator.redis.error import CallTimeoutError, LinkError
from trio_orchestrator.redis.server import Server
from trio_orchestrator.testing import run_virtual

TIMEOUT: Final = 2.0
MOMENTS: Final = st.integers(0, 48).map(lambda n: n / 16)
PAUSES: Final = st.integers(0, 8).map(lambda n: n / 16)


@dataclass(frozen=True)
class Step:
    """What a task does next."""

    kind: str
    pause: float
    patience: float | None
    """After so many seconds the task cancels it."""


@dataclass(frozen=True)
class Fault:
    """Some trouble, for some time."""

    kind: str
    at: float
    length: float


@dataclass(frozen=True)
class World:
    """All that is drawn."""

    tasks: list[list[Step]]
    faults: list[Fault]
    exact: bool
    takes: int
    cut: int
    latency: float
    window: int
    silent_after: float
    command_timeout: float = TIMEOUT


STEPS = st.builds(
    Step,
    st.sampled_from(["incr", "incr", "echo", "read", "batch", "reads", "post"]),
    PAUSES,
    st.one_of(st.none(), st.none(), PAUSES),
)
FAULTS = st.builds(
    Fault,
    st.sampled_from(["kill", "kill", "stall", "mute", "down", "full", "renew", "drop", "slow", "push", "lie", "after"]),
    MOMENTS,
    MOMENTS,
)
WORLDS = st.builds(
    World,
    st.lists(st.lists(STEPS, min_size=1, max_size=5), min_size=1, max_size=5),
    st.lists(FAULTS, max_size=4),
    st.booleans(),
    st.integers(1, 60),
    st.integers(1, 40),
    st.sampled_from([0, 1 / 32, 1 / 4]),
    st.sampled_from([1, 2, 100]),
    st.sampled_from([0.5, 1, 2]),
)


class Run:
    """One world, and what comes of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.outcomes: dict[bytes, Any] = {}
        """What became of the call with this name: an answer, an exception, or None if it was cancelled."""
        self.posts: list[bytes] = []
        self.order: dict[int, list[bytes]] = {}
        """The names that a task used, in order."""

    async def go(self) -> None:
        """Live through it, and look at what is left."""
        world = self.world
        async with open_scripted() as scripted:
            scripted.exact, scripted.latency = world.exact, world.latency
            scripted.takes = lambda n: min(n, world.takes)
            scripted.cut = lambda n: (world.cut,) * (n // world.cut)
            async with open_server(
                scripted, max_in_flight=world.window, silent_after=world.silent_after, command_timeout=TIMEOUT
            ) as server:
                async with trio.open_nursery() as nursery:
                    for number, steps in enumerate(world.tasks):
                        nursery.start_soon(self._task, server, number, steps)
                    for fault in world.faults:
                        nursery.start_soon(self._fault, scripted, server, fault)
                await self._check_usable(scripted, server)
            self._check(scripted)

    # ---------------------------------------------------------------------------------------------- the tasks

    async def _task(self, server: Server, number: int, steps: list[Step]) -> None:
        names = self.order[number] = []
        for n, step in enumerate(steps):
            await trio.sleep(step.pause)
            name = b"%d-%d" % (number, n)
            names.append(name)
            if step.kind == "post":
                self.posts.append(name)
                server.link.post(command("INCR", name))
            else:
                await self._call(server, name, step)

    async def _call(self, server: Server, name: bytes, step: Step) -> None:
        begun = trio.current_time()
        self.outcomes[name] = None
        try:
            with trio.move_on_after(TIMEOUT * 2 if step.patience is None else step.patience):
                call, expected = self._make(name, step.kind)
                self.outcomes[name] = await server.link.call(call)
                assert self.outcomes[name] == expected, (self.outcomes[name], expected)
        except (LinkError, CallTimeoutError) as error:
            self.outcomes[name] = error
        assert trio.current_time() - begun <= TIMEOUT, "it took longer than command_timeout"

    def _make(self, name: bytes, kind: str) -> tuple[Any, Any]:
        match kind:
            case "incr":
                return command("INCR", name), 1
            case "echo":
                return command("NEST", name, 2), nest(name, 2)
            case "read":
                return command("ECHO", name, resend=True), name
            case "reads":
                return batch(("ECHO", name), ("ECHO", name + b"!"), resend=True), [name, name + b"!"]
            case _:
                return batch(("INCR", name), ("ECHO", name), atomic=False), [1, name]

    # --------------------------------------------------------------------------------------------- the faults

    async def _fault(self, scripted: ScriptedServer, server: Server, fault: Fault) -> None:
        await trio.sleep(fault.at)
        session = scripted.session
        match fault.kind:
            case "kill":
                scripted.kill()
            case "renew":
                server.link.renew()
            case "drop":
                server.link.drop(ConnectionError("dropped by the test"))
            case "lie":
                session.say_raw(b"?\r\n")
            case "stall" | "mute":
                getattr(session, fault.kind)()
                await trio.sleep(fault.length)
                getattr(session, fault.kind)(on=False)
            case _:
                await self._trouble(scripted, fault)

    async def _trouble(self, scripted: ScriptedServer, fault: Fault) -> None:
        match fault.kind:
            case "down":
                scripted.down = ConnectionRefusedError()
                scripted.kill()
            case "full":
                scripted.full = True
            case "slow":
                scripted.takes_long = lambda words: 0.25
            case "push":
                scripted.pushes = lambda: [b"message", b"x"]
            case _:
                killed = iter([True])
                scripted.kill_after = lambda words: words[0] in (b"INCR", b"ECHO") and next(killed, False)
        await trio.sleep(fault.length)
        scripted.down, scripted.full = None, False
        scripted.takes_long = lambda words: 0.0
        scripted.pushes = lambda: None
        scripted.kill_after = lambda words: False
        scripted.stir()

    # ---------------------------------------------------------------------------------------------- the verdict

    async def _check_usable(self, scripted: ScriptedServer, server: Server) -> None:
        await trio.sleep(10)
        assert await server.link.call(command("ECHO", "after")) == b"after"
        statistics = server.link.statistics()
        assert (statistics.in_flight, statistics.queued, statistics.waiting) == (0, 0, 0)
        assert server.link.outbox.used == server.link.outbox.size == 0
        assert len([end for end in scripted.ends if not end.closed]) == 1

    def _check(self, scripted: ScriptedServer) -> None:
        times = {name: len(scripted.ran("INCR", name.decode())) for name in [*self.outcomes, *self.posts]}
        assert all(count <= 1 for count in times.values()), "a write was executed twice"
        for name, outcome in self.outcomes.items():
            ran = any(name in one.words for one in scripted.log)
            if isinstance(outcome, (LinkError, CallTimeoutError)):
                assert outcome.sent or not ran, "it was executed, though it was said not to be sent"
            elif outcome is not None:
                assert ran
        self._check_order(scripted)

    def _check_order(self, scripted: ScriptedServer) -> None:
        for session in scripted.sessions:
            ran = [one.words[1] for one in scripted.log if one.session == session.number and len(one.words) > 1]
            for names in self.order.values():
                mine = [name for name in ran if name in names]
                assert mine == sorted(mine, key=names.index), "a task was overtaken by itself"


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=WORLDS, seed=st.integers(0, 2**32 - 1))
def test_each_answer_reaches_its_caller_and_each_write_is_executed_at_most_once(world: World, seed: int) -> None:
    run_virtual(Run(world).go, seed=seed)


def test_replies_are_encoded_as_the_protocol_has_it() -> None:
    assert (
        encode([1, None, b"a", {b"k": "OK"}, True, 1.5])
        == b"*6\r\n:1\r\n_\r\n$1\r\na\r\n%1\r\n$1\r\nk\r\n+OK\r\n#t\r\n,1.5\r\n"
    )
