"""Public bug reports that stand beside others in their row, each as a test of ours."""

from __future__ import annotations

from random import Random

import pytest
import trio

from tests.policies.service import Form, Service, three_forms
from trio_orchestrator import Constant, EqualJitter, Exponential, FullJitter, Retry
from trio_orchestrator.abc import Backoff
from trio_orchestrator.testing import run_virtual


@three_forms
def test_tenacity_661_a_predicate_that_says_yes_to_everything_sees_no_cancellation(form: Form) -> None:
    """A time-out around a retry on everything is repeated instead of going out."""
    seen: list[BaseException] = []
    service = Service("never", seconds=60)

    def everything(error: BaseException) -> bool:
        seen.append(error)
        return True

    async def main() -> None:
        with trio.move_on_after(1) as scope:
            await form(Retry(on=everything, backoff=Constant(0)), service)
        assert scope.cancelled_caught
        assert trio.current_time() == 1

    run_virtual(main)
    assert seen == []
    assert service.starts == [0]


@pytest.mark.parametrize("backoff", [FullJitter(), EqualJitter(), Exponential()], ids=repr)
def test_stamina_137_the_thousandth_pause_is_a_number(backoff: Backoff) -> None:
    """`OverflowError: int too large to convert to float` after some thousand attempts."""
    rng = Random(1)
    for retry in (1023, 1024, 1025, 5000, 10**6):
        assert 0 <= backoff(retry, rng) <= 30
