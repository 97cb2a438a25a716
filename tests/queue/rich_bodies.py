"""What the jobs of the rich machine do, and the policy around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple, final

import trio

from tests.queue.rich_model import BAD, Asked, Failed, Job, Side, current_job
from trio_orchestrator import JobError, Policy, RejectedError

if TYPE_CHECKING:
    from tests.queue.test_rich_machine import RichMachine

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CLEAN_UP = 1.5

PLAIN = ("quick", "quick", "sleepy", "hanging", "failing", "failing slowly")
REPEATED = ("bad", "bad slowly", "wishing", "rejected")
STUBBORN = ("swallowing", "stubborn", "failing in its clean-up", "leaking")
ACTIVE = ("submitting", "parent", "crossing", "cancelling itself", "cancelling another", "clearing", "moving another")
KINDS = PLAIN + REPEATED + STUBBORN + ACTIVE


@final
class Outage(Policy):
    """Refuses attempts as long as told to, at once or after a while, or when the body has run."""

    def __init__(self) -> None:
        self.side: Side
        self.refusals: list[float] = []  # the `retry_after` of the next ones
        self.seconds = 0.0  # how long it thinks
        self.shielded = False
        self.late = False  # refuses when the body has run

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        job = current_job.get()
        self.side.begins(job)
        job.end = "cleaning" if self.shielded else "cancelled", None
        try:
            with trio.CancelScope(shield=self.shielded):
                await trio.sleep(self.seconds)
            if self.refusals and not self.late:
                raise self.refuse(job, "refused")
            result = await fn(*args)
            if self.refusals and self.late:
                raise self.refuse(job, "raised")
            return result
        finally:
            self.side.over(job)

    def refuse(self, job: Job, how: str) -> RejectedError:
        refusal = RejectedError(retry_after=self.refusals.pop(0))
        if job.end[0] != "leaked":
            job.end = how, refusal
        return refusal


@final
class Bodies:
    """Run the jobs of a machine, and report to their side."""

    def __init__(self, machine: RichMachine) -> None:
        self.machine = machine

    async def body(self, job: Job) -> object:
        side = job.side
        if not side.config.protected:
            side.begins(job)
        job.end = "cancelled", None
        try:
            result = await self.act(job)
            if job.asked.kind != "leaking":
                job.end = "returned", result
            return result
        except Exception as error:
            job.end = "raised", error
            raise
        finally:
            if not side.config.protected:
                side.over(job)

    async def act(self, job: Job) -> object:
        kind, seconds = job.asked.kind, job.asked.seconds
        if kind.endswith("slowly") or kind == "sleepy":
            await trio.sleep(seconds)
        if kind.startswith("failing") and kind != "failing in its clean-up":
            raise Failed
        if kind.startswith("bad"):
            return BAD
        if kind == "wishing":
            raise Failed(seconds)
        if kind == "rejected":
            raise RejectedError(retry_after=seconds)
        if kind == "hanging":
            await trio.sleep_forever()
        if kind in STUBBORN:
            await self.clean_up(job)
        if kind in ACTIVE:
            await self.interfere(job)
        return job.number

    async def clean_up(self, job: Job) -> None:
        kind = job.asked.kind
        if kind == "leaking":
            job.end = "leaked", None
            trio.CancelScope().__enter__()
            return
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            job.end = "cleaning", None
            with trio.CancelScope(shield=True):
                await trio.sleep(CLEAN_UP)
            job.end = "cancelled", None
            if kind == "stubborn":
                raise
            if kind.startswith("failing"):
                raise Failed from None

    async def interfere(self, job: Job) -> None:
        kind, machine, side = job.asked.kind, self.machine, job.side
        others = [other for other in side.jobs if other.handle is not None and other is not job]
        other = others[int(job.asked.seconds * 2) % len(others)] if others else None
        if kind == "submitting":
            await self.submit_inside(job, side)
        elif kind == "parent":
            await self.be_a_parent(job)
        elif kind == "crossing":
            machine.submit_now(machine.job(machine.sides[-1], Asked()), inside=machine.sides[-1] is side)
        elif kind == "cancelling itself":
            side.cancel(job)
            await trio.sleep(job.asked.seconds)
        elif kind == "cancelling another" and other is not None:
            side.cancel(other)
        elif kind == "clearing":
            side.clear()
        elif kind == "moving another" and other is not None:
            side.reprioritise(other, job.asked.seconds)

    async def submit_inside(self, job: Job, side: Side) -> Job | None:
        """Never waits, however full the queue is."""
        child = self.machine.job(side, Asked(priority=job.asked.priority, kind="sleepy", seconds=job.asked.seconds))
        now = trio.current_time()
        if not self.machine.submit_now(child, inside=True):
            return None
        self.machine.check(trio.current_time() == now, "submit waited inside a job")
        return child

    async def be_a_parent(self, job: Job) -> None:
        child = await self.submit_inside(job, job.side)
        if child is None or child.handle is None:
            return
        job.blocked_on = child
        try:
            await child.handle.wait()
        except RuntimeError as error:
            outs = [other for other in job.side.jobs if other.out and other.blocked_on is None]
            self.machine.check(not outs, f"{error}, and {outs} could go on")
        except (JobError, Failed, RejectedError):
            pass
        finally:
            job.blocked_on = None
            child.told = True
