"""A cancellation from outside goes out of every form, wherever it strikes, and no attempt follows."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.policies.service import AT_ONCE, Form, Service, three_forms
from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual


def everything(error: Exception) -> bool:
    return True


CONFIGURATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"backoff": AT_ONCE},
    {"attempt_timeout": 1.0},
    {"timeout": 100.0},
    {"on_result": lambda result: result != "fine"},
)
configured = pytest.mark.parametrize("options", CONFIGURATIONS, ids=lambda options: next(iter(options), "plain"))


@pytest.mark.parametrize(("cancel_at", "starts"), [(0.5, [0]), (1.5, [0]), (3.5, [0, 3])])
@configured
@three_forms
def test_tenacity_529_a_cancellation_is_not_repeated(
    form: Form, options: dict[str, Any], cancel_at: float, starts: list[float]
) -> None:
    service = Service(OSError(), seconds=1)
    options = options | {"backoff": Constant(2)}
    if "attempt_timeout" in options:
        options["attempt_timeout"] = 50.0

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(form, Retry(on=everything, **options), service)
                await trio.sleep(cancel_at)
                scope.cancel()
        assert scope.cancelled_caught
        assert trio.current_time() == cancel_at  # at once, also in a pause
        assert service.starts == starts

    run_virtual(main)


@configured
@three_forms
def test_cancelled_at_every_checkpoint(form: Form, options: dict[str, Any]) -> None:
    async def scenario(injector: CancelAt) -> None:
        late: list[bool] = []
        results: list[str] = []

        async def body() -> str:
            late.append(injector.fired)
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.25)
            if len(late) < 3:
                raise OSError
            return "fine"

        with injector.watch() as scope:
            results.append(await form(Retry(on=everything, **{"backoff": Constant(1)} | options), body))
        assert late.count(True) == (injector.n == 0)  # cancelled before its first step, it reaches one checkpoint
        assert results == ([] if injector.fired else ["fine"])
        assert scope.cancelled_caught is injector.fired

    assert cancelled_everywhere(scenario, seeds=range(2)) >= 2 * 8


@pytest.mark.parametrize("policy", [Timeout(5), Retry(on=OSError, attempt_timeout=5)], ids=repr)
def test_a_policy_gives_way_at_every_checkpoint_of_its_function(policy: Policy) -> None:
    async def scenario(injector: CancelAt) -> None:
        ended: list[str] = []

        async def body() -> None:
            try:
                await trio.sleep(1)
                await trio.sleep(1)
                ended.append("returned")
            except trio.Cancelled:
                ended.append("cancelled")
                raise

        with injector.watch():
            await policy.call(body)
        assert ended == ["cancelled" if injector.fired else "returned"]

    assert cancelled_everywhere(scenario) == 10
