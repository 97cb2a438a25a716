"""What a body may leave behind in its task. The one place of the queue that reads private names of Trio."""

from __future__ import annotations

import trio


def is_clean(task: trio.lowlevel.Task, scope: trio.CancelScope) -> bool:
    """Whether `scope` is the innermost cancel scope of `task`, and no nursery of it is open."""
    return task._cancel_status is scope._cancel_status and not task._child_nurseries
