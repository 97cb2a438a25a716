"""The figures of the queue, and what importing the library costs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.measure import HERE, Figure, Reading, alternate, child, command, judged, median, median_ratio

FIGURES = (
    "trivial_job",
    "trivial_job_submit",
    "trivial_job_drain",
    "attempt_timeout",
    "explicit_limiter",
    "two_queues_one_limiter",
    "ten_priorities",
    "fifty_keys",
    "peer_nursery_limiter",
    "peer_aiometer",
    "peer_p_limit",
    "peer_p_queue",
    "await_submit",
    "queue_run",
    "rising_priorities",
    "sleeps_1ms",
    "sleeps_1ms_timeout",
    "sleeps_peak",
    "retry_due_together",
    "retry_due_scattered",
    "bytes_waiting_plain",
    "bytes_waiting_options",
    "retry_scheduled_bytes",
    "million_jobs",
    "million_peak_memory",
    "import_cpu",
    "import_memory",
)

Contender = Callable[[], Reading]


@dataclass(frozen=True)
class Row:
    """One figure: the reading ``key`` of the contender ``ours`` divided by the same of the contender ``against``."""

    figure: str
    ours: str
    against: str = ""
    key: str = "us"


@dataclass(frozen=True)
class Race:
    """Contenders that are alternated in one run, and the figures that come out of it."""

    contenders: dict[str, Contender]
    rows: tuple[Row, ...]
    rounds: int

    def run(self, wanted: Collection[str]) -> Iterator[Figure]:
        """Run those contenders that the wanted figures need."""
        rows = [row for row in self.rows if row.figure in wanted]
        needed = {name for row in rows for name in (row.ours, row.against)}
        readings = alternate({name: run for name, run in self.contenders.items() if name in needed}, self.rounds)
        for row in rows:
            yield _figure(row, readings)


def _figure(row: Row, readings: dict[str, list[Reading]]) -> Figure:
    if row.ours not in readings or (row.against and row.against not in readings):
        return judged(row.figure, None)
    ours = [reading[row.key] for reading in readings[row.ours]]
    theirs = [reading[row.key] for reading in readings[row.against]] if row.against else []
    return judged(row.figure, median(ours), median_ratio(ours, theirs) if theirs else None)


def figures(quick: bool, wanted: Collection[str] = FIGURES) -> Iterator[Figure]:
    """Run the races and yield each figure as its race ends.

    Args:
        quick: Fewer jobs and rounds.
        wanted: The figures to measure; the rest costs nothing.
    """
    for race in RACES:
        yield from race(quick).run(wanted)
    yield from importing(quick, wanted)


def throughput(quick: bool) -> Race:
    """Trivial jobs through 100 slots, all submitted first."""
    ours = partial(child, n=10_000 if quick else 100_000, concurrency=100)
    contenders = {
        "pool": ours("bare_pool"),
        "queue": ours("queue_jobs"),
        "timed": ours("queue_jobs", attempt_timeout=30),
        "limiter": ours("queue_limiter", queues=1),
        "two": ours("queue_limiter", queues=2),
        "priorities": ours("queue_priorities", levels=10),
        "keys": ours("queue_keys", keys=50, per_key=2),
    }
    rows = (
        Row("trivial_job", "queue", "pool"),
        Row("trivial_job_submit", "queue", "pool", "submit"),
        Row("trivial_job_drain", "queue", "pool", "drain"),
        Row("attempt_timeout", "timed", "pool"),
        Row("explicit_limiter", "limiter", "pool"),
        Row("two_queues_one_limiter", "two", "pool"),
        Row("ten_priorities", "priorities", "pool"),
        Row("fifty_keys", "keys", "pool"),
    )
    return Race(contenders, rows, rounds=3 if quick else 7)


def peers(quick: bool) -> Race:
    """The same trivial jobs through other libraries, and ours."""
    n = 10_000 if quick else 100_000
    run = partial(child, n=n, concurrency=100)
    node = partial(command, "node", "--expose-gc", str(HERE / "peers.mjs"))
    theirs = {
        "nursery_limiter": run("nursery_limiter"),
        "aiometer": run("aiometer"),
        "p_limit": node("p-limit", "100", str(n)),
        "p_queue": node("p-queue", "100", str(n)),
    }
    rows = tuple(Row(f"peer_{name}", name, "queue") for name in theirs)
    return Race(theirs | {"queue": run("queue_jobs")}, rows, rounds=1 if quick else 5)


def submitting(quick: bool) -> Race:
    """Backpressure: at most 100 jobs wait."""
    run = partial(child, n=10_000 if quick else 100_000, concurrency=100, bound=100)
    contenders = {"send": run("bare_pool_send"), "submit": run("queue_submit")}
    return Race(contenders, (Row("await_submit", "submit", "send"),), rounds=3 if quick else 7)


def calling(quick: bool) -> Race:
    """One call after the other."""
    n = 5_000 if quick else 50_000
    contenders = {"nursery": child("nursery_a_call", n=n), "run": child("queue_run", n=n, concurrency=100)}
    return Race(contenders, (Row("queue_run", "run", "nursery"),), rounds=3 if quick else 7)


def rising(quick: bool) -> Race:
    """Each job's priority is above all before it: four times the jobs, linearithmic or not."""
    run = partial(child, "queue_priorities", concurrency=100, levels=0)
    n = 10_000 if quick else 50_000
    contenders = {"few": run(n=n), "many": run(n=4 * n)}
    return Race(contenders, (Row("rising_priorities", "many", "few"),), rounds=1 if quick else 5)


def sleeping(quick: bool) -> Race:
    """1 ms sleeps in 1000 slots; the bodies count themselves, so the peak is how many really ran at once."""
    run = partial(child, n=5_000 if quick else 40_000, concurrency=1000)
    contenders = {
        "pool": run("bare_pool_sleeps"),
        "queue": run("queue_sleeps"),
        "timed": run("queue_sleeps", attempt_timeout=30),
    }
    rows = (
        Row("sleeps_1ms", "queue", "pool"),
        Row("sleeps_1ms_timeout", "timed", "pool"),
        Row("sleeps_peak", "queue", key="peak"),
    )
    return Race(contenders, rows, rounds=3 if quick else 7)


def retrying(quick: bool) -> Race:
    """A retry, due 20 000 times a second: in groups of 100 at one instant, or each at its own."""
    run = partial(
        child, "queue_retries", n=5_000 if quick else 20_000, concurrency=20, lead=0.5 if quick else 1.0, spacing=50e-6
    )
    contenders = {
        "checkpoint": child("checkpoints", n=50_000),
        "together": run(together=100),
        "scattered": run(together=1),
    }
    rows = (
        Row("retry_due_together", "together", "checkpoint"),
        Row("retry_due_scattered", "scattered", "checkpoint"),
    )
    return Race(contenders, rows, rounds=1 if quick else 5)


def waiting(quick: bool) -> Race:
    """What a job holds that waits."""
    run = partial(child, n=30_000 if quick else 100_000, concurrency=10, warm_up=100)
    contenders = {
        "plain": run("queue_waiting"),
        "options": run("queue_waiting_options"),
        "retry": run("queue_retry_scheduled"),
    }
    rows = (
        Row("bytes_waiting_plain", "plain", key="bytes"),
        Row("bytes_waiting_options", "options", key="bytes"),
        Row("retry_scheduled_bytes", "retry", key="bytes"),
    )
    return Race(contenders, rows, rounds=1 if quick else 3)


def million(quick: bool) -> Race:
    """One million trivial jobs, all submitted before the first one runs; quick: 150 000, scaled up to a million.

    The seconds for a million are the microseconds for one.
    """
    run = partial(child, n=150_000 if quick else 1_000_000, concurrency=1000)
    contenders = {"pool": run("bare_pool"), "queue": run("queue_jobs")}
    rows = (
        Row("million_jobs", "queue", "pool"),
        Row("million_peak_memory", "queue", key="mib_a_million"),
    )
    return Race(contenders, rows, rounds=3 if quick else 5)


def importing(quick: bool, wanted: Collection[str]) -> Iterator[Figure]:
    """What the library adds to Trio, in fresh interpreters; the first one only writes byte code."""
    if not {"import_cpu", "import_memory"} & set(wanted):
        return
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as bytecode:
        run = command(sys.executable, "-m", "benchmarks.importing", PYTHONPYCACHEPREFIX=bytecode)
        run()
        readings = alternate({"import": run}, 3 if quick else 7)["import"]
    ours, trio = ([reading[key] for reading in readings] for key in ("ours", "trio"))
    if "import_cpu" in wanted:
        yield judged("import_cpu", median(ours), median_ratio(ours, trio))
    if "import_memory" in wanted:
        figure = judged("import_memory", median([reading["mib"] for reading in readings]))
        strangers = any(reading["strangers"] for reading in readings)
        yield replace(figure, ok=False, against=f"{figure.against}, but loaded") if strangers else figure


RACES = (throughput, peers, submitting, calling, rising, sleeping, retrying, waiting, million)
