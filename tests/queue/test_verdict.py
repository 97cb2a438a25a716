"""What a guard inside a job learns: our time-outs are failures of the service, the cancellations of others nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple, final

import pytest
import trio

from tests.queue.bodies import assert_law
from trio_orchestrator import Failures, JobHandle, Retry, TaskQueue, Timeout, open_task_queue
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.block import settle_later
from trio_orchestrator.testing import run_virtual

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALLS = 100


@final
class Guard(Policy):
    """The half of a circuit breaker that counts. A plain `with guard.guard():`, and a policy around it."""

    def __init__(self) -> None:
        self.inside = 0
        self.succeeded = 0
        self.failed = 0
        self.neutral = 0

    @property
    def verdicts(self) -> tuple[int, int, int]:
        assert self.inside == 0
        return self.succeeded, self.failed, self.neutral

    def _report(self, failed: bool) -> None:
        self.failed += failed
        self.neutral += not failed

    @contextmanager
    def guard(self) -> Generator[None, None, None]:
        self.inside += 1
        try:
            yield
        except trio.Cancelled:
            settle_later(self._report)
            raise
        except Exception:
            self.failed += 1
            raise
        else:
            self.succeeded += 1
        finally:
            self.inside -= 1

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        with self.guard():
            return await fn(*args)


class _Setting:
    """A guard around the bodies, or as the `protect=` of a queue."""

    def __init__(self, where: str) -> None:
        self.guard = Guard()
        self.protect = self.guard if where == "protect" else None

    def queue(self, **options: Any) -> Any:
        options = {"concurrency": 10, "failures": Failures.RECORD, "protect": self.protect, **options}
        return open_task_queue(**options)

    def guarded(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        return fn if self.protect is not None else self.guard.wrap(fn)

    async def submit(self, queue: TaskQueue, fn: Callable[..., Awaitable[Any]], **options: Any) -> list[JobHandle[Any]]:
        return [await queue.submit(self.guarded(fn), **options) for _ in range(CALLS)]


async def _hang() -> None:
    await trio.sleep_forever()


async def _hang_and_clean_up() -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)


everywhere = pytest.mark.parametrize("where", ["in the body", "protect"])
schedules = pytest.mark.parametrize("seed", range(3))


@everywhere
@schedules
@pytest.mark.parametrize(
    ("of_queue", "of_job"),
    [
        ({"attempt_timeout": 1}, {}),
        ({}, {"attempt_timeout": 1}),
        ({}, {"timeout": 20}),
        ({"retry": Retry(on=(), attempt_timeout=1, attempts=1)}, {}),
        ({"attempt_timeout": 1}, {"priority": 2, "key": "k", "name": "n"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("body", [_hang, _hang_and_clean_up])
def test_hung_calls_that_time_out_are_failures(
    where: str, seed: int, of_queue: dict[str, Any], of_job: dict[str, Any], body: Callable[[], Awaitable[None]]
) -> None:
    async def main() -> None:
        setting = _Setting(where)
        async with setting.queue(**of_queue, per_key=10) as queue:
            handles = await setting.submit(queue, body, **of_job)
        ran = sum(handle.attempts for handle in handles)
        assert setting.guard.verdicts == (0, ran, 0)
        assert ran == CALLS or "timeout" in of_job
        assert ran > 0

    run_virtual(main, seed=seed)


@everywhere
@schedules
def test_every_timed_out_attempt_is_a_failure(where: str, seed: int) -> None:
    async def main() -> None:
        setting = _Setting(where)
        retry = Retry(on=(), attempts=3, backoff=Constant(1))
        async with setting.queue(attempt_timeout=1, retry=retry) as queue:
            await setting.submit(queue, _hang)
        assert setting.guard.verdicts == (0, 3 * CALLS, 0)

    run_virtual(main, seed=seed)


@everywhere
@schedules
@pytest.mark.parametrize("how", ["handle", "group", "close", "outside", "block raises", "run"])
@pytest.mark.parametrize("options", [{}, {"attempt_timeout": 1000}], ids=str)
def test_hung_calls_that_somebody_cancels_are_nothing(where: str, seed: int, how: str, options: dict[str, Any]) -> None:
    async def main() -> None:
        setting = _Setting(where)
        handles: list[JobHandle[Any]] = []
        queues: list[TaskQueue] = []
        with trio.CancelScope() as scope:
            try:
                async with setting.queue(concurrency=CALLS, **options) as queue, queue.group() as mine:
                    queues.append(queue)
                    if how == "run":
                        async with trio.open_nursery() as nursery:
                            for _ in range(CALLS):
                                nursery.start_soon(queue.run, setting.guarded(_hang))
                            await trio.sleep(1)
                            nursery.cancel_scope.cancel()
                    elif how == "group":
                        handles += [await mine.submit(setting.guarded(_hang)) for _ in range(CALLS)]
                    else:
                        handles += await setting.submit(queue, _hang)
                    await trio.sleep(1)
                    match how:
                        case "handle":
                            for handle in handles:
                                handle.cancel()
                        case "group":
                            mine.cancel()
                        case "close":
                            assert len(await queue.close(grace=5)) == CALLS
                        case "outside":
                            scope.cancel()
                        case "block raises":
                            raise ValueError(how)
                        case _:
                            pass
            except ValueError:
                pass
        assert setting.guard.verdicts == (0, 0, CALLS)
        assert_law(queues[0].statistics())

    run_virtual(main, seed=seed)


@everywhere
@schedules
def test_the_first_to_end_a_call_decides(where: str, seed: int) -> None:
    async def main() -> None:
        setting = _Setting(where)
        async with setting.queue(attempt_timeout=10) as queue:
            cancelled_first = await queue.submit(setting.guarded(_hang_and_clean_up))
            timed_out_first = await queue.submit(setting.guarded(_hang_and_clean_up), attempt_timeout=1)
            await trio.sleep(2)
            timed_out_first.cancel()  # it cleans up already
            await trio.sleep(7)
            cancelled_first.cancel()  # its time is over while it cleans up
        assert setting.guard.verdicts == (0, 1, 1)

    run_virtual(main, seed=seed)


@everywhere
@schedules
@pytest.mark.parametrize("options", [{}, {"attempt_timeout": 1000}], ids=str)
def test_a_time_out_of_ours_around_run_is_a_failure_of_the_call_inside(
    where: str, seed: int, options: dict[str, Any]
) -> None:
    async def main() -> None:
        setting = _Setting(where)
        async with setting.queue(concurrency=CALLS, **options) as queue, trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(trio.TooSlowError):
                    await Timeout(1).call(queue.run, setting.guarded(_hang))

            for _ in range(CALLS):
                nursery.start_soon(call)
        assert setting.guard.verdicts == (0, CALLS, 0)

    run_virtual(main, seed=seed)


@everywhere
@schedules
def test_a_time_out_around_the_submission_says_nothing_about_the_job(where: str, seed: int) -> None:
    async def main() -> None:
        setting = _Setting(where)
        async with setting.queue() as queue:
            handle = await Timeout(1).call(queue.submit, setting.guarded(_hang))
            await trio.sleep(2)
            handle.cancel()
        assert setting.guard.verdicts == (0, 0, 1)

    run_virtual(main, seed=seed)


@everywhere
def test_what_ends_by_itself_is_known_at_once(where: str) -> None:
    async def main() -> None:
        setting = _Setting(where)

        async def fail() -> None:
            raise OSError

        async with setting.queue(attempt_timeout=5) as queue:
            await setting.submit(queue, trio.lowlevel.checkpoint)
            await setting.submit(queue, fail)
        assert setting.guard.verdicts == (CALLS, CALLS, 0)

    run_virtual(main)
