"""Many calls in one process: the task queue, its handles, groups, gates, and maps over it."""
