"""Environment of one measurement: a fresh database, an empty Redis, shared memory, and a peer's processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg
import redis

from benchmarks.peers import processes, work
from benchmarks.peers.environments import ROOT
from benchmarks.peers.job_counter import JobCounter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.peers.peers import Peer, Program
    from drain.embedded import Services

DATABASE = "peers"
_FIRST_JOB_SECONDS = 30
_END_SECONDS = 10
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Running:
    """Process ids of a peer's started programs, which stand for their forks as well."""

    workers: list[int]
    others: list[int]

    @property
    def pids(self) -> list[int]:
        return self.workers + self.others


class Bench:
    """Both servers, and a directory that processes share.

    Args:
        services: Servers, the same for all peers.
        directory: Directory of the shared memory and the logs.
    """

    def __init__(self, services: Services, directory: Path) -> None:
        self.services = services
        self.directory = directory
        self.database_url = services.postgres.url_of(DATABASE)
        self.counter = JobCounter.create(directory / work.COUNTER)

    @cached_property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "BENCH_DIRECTORY": str(self.directory),
            "BENCH_DATABASE_URL": self.database_url,
            "BENCH_REDIS_URL": self.services.redis_url,
            "BENCH_SPINS": str(work.spins_of_a_millisecond()),
            "PYTHONPATH": str(ROOT),
            "DRAIN_DATABASE_URL": self.database_url,
            "DRAIN_REDIS_URL": self.services.redis_url,
            "DRAIN_NAMESPACE": "bench",
            "DRAIN_JOBS": "benchmarks.peers.apps.drain_app",
            # Graphile Worker: no log line per job, as in its own performance test.
            "NO_LOG_SUCCESS": "1",
        }

    def reset(self, peer: Peer) -> None:
        """Create a fresh database with the peer's tables, and empty Redis."""
        with psycopg.connect(self.services.postgres.url_of("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(work.MAKE_ACCOUNTS)
            connection.execute(work.MAKE_ORDERS)
        with redis.Redis.from_url(self.services.redis_url, socket_timeout=60) as client:
            client.flushall()
        self._in_its_environment(peer, "fill", peer.app, "noop", "0", "prepare")

    def fill(self, peer: Peer, name: str, jobs: int) -> None:
        """Enqueue jobs, then vacuum and analyze, as on a server that has run for a while."""
        self._in_its_environment(peer, "fill", peer.app, name, str(jobs))
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def forget(self) -> None:
        """Reset the counts; no process of a peer may run."""
        self.counter = JobCounter.create(self.directory / work.COUNTER)
        for name in (work.STARTS, work.COMMITS):
            (self.directory / name).unlink(missing_ok=True)

    def produce(self, peer: Peer, per_second: int, seconds: float, threads: int) -> None:
        """Commit single jobs at a steady rate."""
        self._in_its_environment(peer, "produce", peer.app, str(per_second), str(seconds), str(threads))

    def cost(self, peer: Peer, steps: int) -> str:
        """Return the step costs that the peer's app prints."""
        return self._in_its_environment(peer, "stepped", peer.app, "cost", str(steps))

    @contextmanager
    def running(self, programs: Sequence[Program]) -> Iterator[Running]:
        """Run the programs while the block runs."""
        started: list[tuple[subprocess.Popen[bytes], bool]] = []
        try:
            with (self.directory / "log").open("wb") as log:
                for program in programs:
                    process = subprocess.Popen(
                        program.words,
                        env=self.environment,
                        cwd=self.directory,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                    started.append((process, program.is_worker))
            yield Running(
                [process.pid for process, is_worker in started if is_worker],
                [process.pid for process, is_worker in started if not is_worker],
            )
        finally:
            _end([process for process, _ in started])

    def wait_for_jobs(self, jobs: int, seconds: float) -> bool:
        """Wait for this many jobs; returns False if they are not done `seconds` after the first.

        Raises:
            RuntimeError: No job was done.
        """
        deadline = monotonic() + _FIRST_JOB_SECONDS
        seen = False
        while (done := self.counter.read()).jobs < jobs:
            if done.jobs and not seen:
                seen, deadline = True, monotonic() + seconds
            if monotonic() > deadline:
                if not seen:
                    raise RuntimeError(f"no job was done: {self._last_words()}")
                return False
            sleep(_LOOK_SECONDS)
        return True

    def cpu_seconds(self, running: Running) -> dict[str, float]:
        """Read the processor time so far, of each store and of the peer's programs."""
        services = self.services
        return {
            "programs": processes.cpu_seconds(running.pids),
            "PostgreSQL": processes.cpu_seconds([services.postgres.pid]),
            "Redis": processes.cpu_seconds([services.redis.pid]),
        }

    def _in_its_environment(self, peer: Peer, program: str, *words: str) -> str:
        ended = subprocess.run(
            [peer.python, "-m", f"benchmarks.peers.{program}", *words],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"{peer.name}, {program}: {ended.stderr.strip()[-500:]}")
        return ended.stdout

    def _last_words(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace").strip()[-1000:]


@contextmanager
def bench(services: Services) -> Iterator[Bench]:
    """Provide a `Bench` with a temporary directory."""
    directory = Path(tempfile.mkdtemp(prefix="drain-peers-"))
    try:
        yield Bench(services, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM, wait for a bounded time, and send SIGKILL to all remaining processes, including forks."""
    members = processes.family(process.pid for process in started)
    for process in started:
        process.terminate()
    deadline = monotonic() + _END_SECONDS
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - monotonic()))
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in started:
        process.wait()
