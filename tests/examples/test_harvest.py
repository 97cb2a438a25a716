from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
PATIENCE = 30.0  # for what takes a second, on a machine that has better things to do


def harvest(state: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / "harvest.py"), f"--state={state}", *arguments]


def run_harvest(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = harvest(state, *arguments)
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False)


@contextmanager
def harvesting(state: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(harvest(state, *arguments), env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def serving(ledger: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [sys.executable, str(EXAMPLES / "harvest_server.py"), f"--ledger={ledger}", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            with httpx.Client(base_url=process.stdout.readline().strip(), timeout=PATIENCE) as client:
                yield process, client
        finally:
            process.kill()


def close_stdin(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    process.stdin.close()
    return process.wait(PATIENCE)


def server_of(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Read the first line of a harvest, `server http://127.0.0.1:1234, process 5678`; return URL and process id."""
    assert process.stdout is not None
    found = re.fullmatch(r"server (\S+), process (\d+)\n", process.stdout.readline())
    assert found is not None
    return found[1], int(found[2])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.01)


def is_up(url: str) -> bool:
    try:
        httpx.get(url, timeout=PATIENCE)
    except httpx.TransportError:
        return False
    return True


def lines(path: Path) -> list[dict[str, Any]]:
    content = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith("\n")]


def rows(count: int) -> list[dict[str, str]]:
    with (EXAMPLES / "harvest_items.csv").open(newline="") as file:
        return list(csv.DictReader(file))[:count]


def check_books(state: Path, count: int, *, limit: int) -> list[dict[str, Any]]:
    """Check results against ledger without the example's own judge; return the ledger."""
    results, ledger = lines(state / "harvest-results.jsonl"), lines(state / "harvest-ledger.jsonl")
    codes = sorted(row["code"] for row in rows(count))
    assert sorted(line["code"] for line in results) == codes
    work = [line for line in ledger if line["receipt"] is not None]
    assert sorted(line["code"] for line in work) == codes
    assert {line["code"]: line["receipt"] for line in work} == {line["code"]: line["receipt"] for line in results}
    assert max(line["in_flight"] for line in ledger) <= limit
    return ledger


# -------------------------------------------------------------------------------------------------------- the client


def test_harvest_loses_none_and_does_none_twice(tmp_path: Path) -> None:
    # In this seed, the first attempts of 200 items meet every fate.
    run = run_harvest(tmp_path, "--items=200", "--concurrency=20", "--rate=40", "--seed=17")
    assert run.returncode == 0, run.stdout + run.stderr
    ledger = check_books(tmp_path, 200, limit=20)
    answers = Counter(line["answer"] for line in ledger)
    assert answers.keys() >= {"ok", "429", "503", "cut", "hung"}
    assert answers["503"] <= 50
    cut_after_the_work = {line["code"] for line in ledger if line["answer"] == "cut" and line["receipt"] is not None}
    done_already = {line["code"] for line in ledger if line["answer"] == "ok" and line["receipt"] is None}
    assert set() < cut_after_the_work <= done_already

    *table, gist = run.stdout.splitlines()
    peak = max(line["in_flight"] for line in ledger)
    attempts = rf"{len(ledger)} attempts, \d+ retries, [\d.]+ s"
    assert re.fullmatch(rf"200 items, {attempts}, peak {peak} of 20, lost 0, doubled 0", gist)
    assert [line.split()[0] for line in table[1:]] == "items attempts retries peak lost doubled wall".split()
    assert all(re.search(rf" {cause} \d+", table[3]) for cause in ("429", "503", "cut", "no answer"))
    assert "harvest: 200/200" in run.stderr


def test_ctrl_c_drains_and_a_second_run_goes_on(tmp_path: Path) -> None:
    # In this seed some of the first sixty items are slow, some are cut, and none of all hangs for two seconds.
    arguments = ("--items=300", "--rate=10000", "--seed=62")
    results, ledger = tmp_path / "harvest-results.jsonl", tmp_path / "harvest-ledger.jsonl"
    with harvesting(tmp_path, *arguments) as process:
        url, server = server_of(process)
        assert os.getsid(server) == server != os.getsid(process.pid)
        wait_until(lambda: len(lines(results)) >= 60, "sixty results")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, output + errors
        assert not is_up(url)
    done = len(lines(results))
    assert 60 <= done < 300
    assert f"stopped: {done} of 300 items are done, {300 - done} are left" in output
    worked = {line["code"] for line in lines(ledger) if line["receipt"] is not None}
    assert {line["code"] for line in lines(results)} <= worked

    for journal in (results, ledger):  # what a killed writer leaves behind
        with journal.open("a") as file:
            file.write('{"code": "00')
    run = run_harvest(tmp_path, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^300 items, .* peak \d+ of 40, lost 0, doubled 0$", run.stdout.splitlines()[-1])
    check_books(tmp_path, 300, limit=40)


def test_a_finished_harvest_is_followed_by_a_new_one(tmp_path: Path) -> None:
    arguments = ("--items=10", "--rate=10000")
    for _ in range(2):
        run = run_harvest(tmp_path, *arguments)
        assert run.returncode == 0, run.stdout + run.stderr
        assert "lost 0, doubled 0" in run.stdout.splitlines()[-1]
        ledger = check_books(tmp_path, 10, limit=40)
        assert len(ledger) == 10


def test_a_server_that_runs_already_is_used_and_left_alone(tmp_path: Path) -> None:
    with serving(tmp_path / "harvest-ledger.jsonl") as (process, client):
        run = run_harvest(tmp_path, "--items=10", f"--url={client.base_url}")
        assert run.returncode == 0, run.stdout + run.stderr
        assert process.poll() is None
    check_books(tmp_path, 10, limit=40)


def test_without_the_queue_items_are_lost(tmp_path: Path) -> None:
    run = run_harvest(tmp_path, "--naive", "--items=300", "--rate=100", "--seconds=6")
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"^300 items, .* peak (\d+) of inf, lost (\d+), doubled 0$", run.stdout.splitlines()[-1])
    assert found is not None, run.stdout
    peak, lost = map(int, found.groups())
    ledger = lines(tmp_path / "harvest-naive-ledger.jsonl")
    assert peak == max(line["in_flight"] for line in ledger) > 40
    results = lines(tmp_path / "harvest-naive-results.jsonl")
    assert lost == 300 - len(results) > 100


def test_the_server_ends_when_the_client_is_killed(tmp_path: Path) -> None:
    with harvesting(tmp_path, "--items=10000") as process:
        url, _ = server_of(process)
        wait_until(lambda: len(lines(tmp_path / "harvest-results.jsonl")) > 0, "a result")
        process.kill()
        wait_until(lambda: not is_up(url), "the end of the server")


# -------------------------------------------------------------------------------------------------------- the server


def test_the_server_ends_when_its_stdin_closes(tmp_path: Path) -> None:
    with serving(tmp_path / "ledger") as (process, client):
        assert client.get("/").status_code == 404
        assert close_stdin(process) == 0


def test_an_item_keeps_its_receipt_also_when_the_server_restarts(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    receipts = []
    for _ in range(2):
        with serving(ledger) as (process, client):
            receipts += [client.post(f"/items/{code}").json()["receipt"] for code in ("A", "B", "A")]
            assert close_stdin(process) == 0
    assert receipts == [1, 2, 1, 1, 2, 1]
    assert [(line["code"], line["receipt"]) for line in lines(ledger) if line["receipt"]] == [("A", 1), ("B", 2)]


def test_the_server_says_429_above_its_rate_and_when_to_come_again(tmp_path: Path) -> None:
    with serving(tmp_path / "ledger", "--rate=1") as (_, client):
        first, second = client.post("/items/A"), client.post("/items/B")
    assert first.status_code == 200
    assert second.status_code == 429
    assert second.headers["Retry-After"] == "1"
    assert [line["answer"] for line in lines(tmp_path / "ledger")] == ["ok", "429"]


# --------------------------------------------------------------------------------------------------------- the input


def test_the_items_are_names_of_unicode_characters() -> None:
    items = rows(20_000)
    assert len({item["code"] for item in items}) == len(items) == 10_000
    assert all(unicodedata.name(chr(int(item["code"], 16))) == item["name"] for item in items)
