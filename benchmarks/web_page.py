"""`python -m benchmarks.web_page`: response times and memory of `drain web` with millions of jobs."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING

import httpx
import psycopg

from benchmarks import alone, crowd, figures
from benchmarks.processes import cpu_seconds, environment, peak_megabytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drain.embedded import Services

# Full and short sizes.
SIZES = {
    "finished": (10_000_000, 10_000),
    "staged": (1_000_000, 10_000),
    "others": (100_000, 1_000),
    "rounds": (30, 3),
}
# Pages by name; `{job}` is the id of a job in flight.
_PAGES = {
    "overview": "/",
    "a queue": "/queues/queue-00",
    "a job": "/jobs/{job}",
    "dead jobs": "/dead",
    "search by a key": "/search?q=customer-7",
    "workers": "/workers",
}
# Tabs that follow the overview during the measurement.
_TABS = 10
_PATIENCE_SECONDS = 60.0


def section(started: Services, *, finished: int, staged: int, others: int, rounds: int) -> str:
    """Measure and return the figures as Markdown."""
    with psycopg.connect(started.database_url, autocommit=True) as connection:
        connection.execute("SET statement_timeout = 0")
        figures.say(f"{finished:,} finished jobs, {staged:,} staged ones")
        crowd.fill(connection, staged=staged, inflight=others, finished=finished, dead=others)
        connection.execute("VACUUM ANALYZE")
        ((job,),) = connection.execute("SELECT id FROM inflight_jobs LIMIT 1")
    with _page(started) as (process, client), ExitStack() as tabs:
        for _ in range(_TABS):
            tabs.enter_context(client.stream("GET", "/stream?page=/", timeout=None))
        first = _seconds(client, "/")
        rows = [
            _measured(name, path.format(job=job), process.pid, client, rounds)
            for name, path in _PAGES.items()
        ]
        megabytes = peak_megabytes(process)
    return (
        "## The page\n\n"
        f"`drain web` with {finished:,} finished jobs, {staged:,} staged, and {others:,} each in flight and dead, in "
        f"{crowd.QUEUES} queues, while {_TABS} tabs follow the overview. {rounds} requests of each page, in "
        f"milliseconds: response time, and processor time of `drain web`, including that of the tabs. "
        f"The first request after the start took {1000 * first:,.0f} ms. Peak memory: {megabytes:.0f} MB.\n\n"
        + figures.table(["page", "median", "lowest", "highest", "processor"], rows)
    )


def _measured(name: str, path: str, pid: int, client: httpx.Client, rounds: int) -> list[str]:
    _seconds(client, path)
    before = cpu_seconds(pid)
    taken = [1000 * _seconds(client, path) for _ in range(rounds)]
    used = 1000 * (cpu_seconds(pid) - before) / rounds
    figures.say(f"  {name}: {statistics.median(taken):.1f} ms")
    shown = [statistics.median(taken), min(taken), max(taken), used]
    return [name, *(f"{value:.1f}" for value in shown)]


def _seconds(client: httpx.Client, path: str) -> float:
    began = monotonic()
    client.get(path).raise_for_status()
    return monotonic() - began


@contextmanager
def _page(started: Services) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "drain", "web", "--port", str(port)]
    process = subprocess.Popen(command, env=environment(started), stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_PATIENCE_SECONDS) as client:
            _wait_until_it_serves(client)
            yield process, client
    finally:
        process.terminate()
        process.wait(timeout=20)


def _wait_until_it_serves(client: httpx.Client) -> None:
    deadline = monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            client.get("/login")
        except httpx.ConnectError:
            if monotonic() > deadline:
                raise
            sleep(0.05)
        else:
            return


if __name__ == "__main__":
    alone.run("web_page", section, SIZES)
