"""Tools for tests of concurrent Trio code: ours, and those of your program. Nothing here needs pytest or Hypothesis.

* `run_virtual` runs a scenario in virtual time under one reproducible schedule. A hang fails at once and shows the task
  tree (`Hung`, `task_tree`); whatever is left behind fails the run.
* `every_checkpoint` and `cancelled_everywhere` run a scenario again and again, cancelling a block in it (`CancelAt`)
  at each of its checkpoints.
* `Stepper` drives one run from synchronous code: `start` a call, `advance` the clock, `cancel`. It is made for
  Hypothesis' `RuleBasedStateMachine`.
* `no_storm` fails a test in which something is attempted too often.
* `open_redis_server`, `open_redis_servers`, `open_redis_cluster_servers` and `open_redis_sentinels` start real servers
  for the length of a block; `open_fault_proxy` stands in front of one and makes trouble.
* `SchedulerPasses`, `assert_no_tokens` and `assert_no_waiters` find what spins and what was not given back.

Trio promises no order between tasks that are ready together, but Hypothesis pins it to one, in which a race may stay
hidden for ever. So **draw a schedule seed in every property**, and make the clock inside the test, as `run_virtual`
does:

```python
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_no_update_is_lost(data: st.DataObject, seed: int) -> None:
    async def main() -> None: ...  # may draw, start tasks, sleep

    run_virtual(main, seed=seed)
```

A state machine draws it in `@initialize(seed=st.integers(0, 2**32 - 1))`, makes its `Stepper(seed)` there, and closes
it in `teardown`.
"""

from __future__ import annotations

from trio_orchestrator.testing.cluster import RedisClusterServers, open_redis_cluster_servers
from trio_orchestrator.testing.direction import Direction
from trio_orchestrator.testing.harness import (
    Hung,
    SchedulerPasses,
    assert_no_tokens,
    assert_no_waiters,
    run_virtual,
    task_tree,
)
from trio_orchestrator.testing.injection import CancelAt, cancelled_everywhere, every_checkpoint
from trio_orchestrator.testing.opening import Opening
from trio_orchestrator.testing.program import ServerIdentity, find_redis_server
from trio_orchestrator.testing.proxy import FaultProxy, FaultProxyStatistics, open_fault_proxy
from trio_orchestrator.testing.sentinel import RedisSentinelServers, open_redis_sentinels
from trio_orchestrator.testing.server import RedisServer, open_redis_server, open_redis_servers
from trio_orchestrator.testing.stepper import Call, StepClock, Stepper
from trio_orchestrator.testing.storm import NoStorm, no_storm

__all__ = [
    "Call",
    "CancelAt",
    "Direction",
    "FaultProxy",
    "FaultProxyStatistics",
    "Hung",
    "NoStorm",
    "Opening",
    "RedisClusterServers",
    "RedisSentinelServers",
    "RedisServer",
    "SchedulerPasses",
    "ServerIdentity",
    "StepClock",
    "Stepper",
    "assert_no_tokens",
    "assert_no_waiters",
    "cancelled_everywhere",
    "every_checkpoint",
    "find_redis_server",
    "no_storm",
    "open_fault_proxy",
    "open_redis_cluster_servers",
    "open_redis_sentinels",
    "open_redis_server",
    "open_redis_servers",
    "run_virtual",
    "task_tree",
]
