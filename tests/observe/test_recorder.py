from __future__ import annotations

import trio
from trio.testing import MockClock

from trio_orchestrator.abc import Instrument
from trio_orchestrator.block import Hooks, emit
from trio_orchestrator.event import GateOpened, LimitChanged
from trio_orchestrator.observe.recorder import Recorder


async def test_events_are_kept_in_order_with_their_times(autojump_clock: MockClock) -> None:
    recorder = Recorder()
    recorder.limit_changed(LimitChanged(1, 2))
    await trio.sleep(3)
    recorder.gate_opened(GateOpened(probing=True))
    recorder.limit_changed(LimitChanged(2, 4))
    assert recorder.events == [(0, LimitChanged(1, 2)), (3, GateOpened(True)), (3, LimitChanged(2, 4))]
    assert recorder.of(LimitChanged) == [LimitChanged(1, 2), LimitChanged(2, 4)]
    assert recorder.times(LimitChanged) == [0, 3]
    assert repr(recorder) == "Recorder(3 events)"
    recorder.clear()
    assert recorder.events == []


async def test_every_hook_is_heard() -> None:
    recorder = Recorder()
    hooks = Hooks([recorder])
    names = [name for name in vars(Instrument) if not name.startswith("_")]
    for name in names:
        emit(hooks.of(name), GateOpened(probing=False))
    assert len(recorder.events) == len(names) >= 17
