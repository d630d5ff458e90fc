"""Real servers for a test."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier
from redis import Redis

from drain.contrib.testing import rows
from drain.database import schema
from drain.embedded import Services, services
from drain.errors import HarnessError
from drain.jobs import registry

# Between looks at the tables, and from SIGTERM to SIGKILL.
_LOOK_SECONDS = 0.05
_STOP_SECONDS = 30.0
_PATIENCE_SECONDS = 60.0
_SHOWN = 2000
_LEADER = ("run", "--metrics-port", "0")
_WORKER = ("work", "--processes", "1")


@dataclass(frozen=True, slots=True)
class DrainServers:
    """Database and Redis of one test.

    Attributes:
        database_url: Only job-drain's tables exist at first.
        redis_url: Empty at first.
    """

    database_url: str
    redis_url: str

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that lead programs to these servers."""
        return {"DRAIN_DATABASE_URL": self.database_url, "DRAIN_REDIS_URL": self.redis_url}

    def run_until_done(self, jobs: Sequence[str] = (), *, timeout: float = _PATIENCE_SECONDS) -> None:
        """Start a leader and a worker, and return once every committed job is finished or dead.

        Args:
            jobs: Modules with jobs; by default, of the functions registered here.
            timeout: In seconds.

        Raises:
            HarnessError: No job is registered, a program has ended, or jobs still wait at the timeout.
        """
        modules = list(jobs) or sorted({module for name in registry.names() if (module := _module(name))})
        if not modules:
            raise HarnessError(
                "no job is registered here: import the modules with jobs, or name them: run_until_done([…])"
            )
        with ExitStack() as stack:
            programs = [
                stack.enter_context(_Program.started((*words, *more), self.environment))
                for words, more in ((_LEADER, ()), (_WORKER, ("--jobs", ",".join(modules))))
            ]
            self._wait(programs, time.monotonic() + timeout)

    def _wait(self, programs: Sequence[_Program], deadline: float) -> None:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            while found := rows.read(connection):
                for program in programs:
                    program.check()
                if time.monotonic() > deadline:
                    written = "\n".join(program.written() for program in programs)
                    raise HarnessError(f"the time is over; {rows.listed(found)}\n{written}")
                time.sleep(_LOOK_SECONDS)


def _module(name: str) -> str | None:
    job = registry.find(name)
    return None if job is None else job.function.__module__


@dataclass(frozen=True, slots=True)
class _Program:
    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    file: IO[bytes] = field(repr=False)

    @classmethod
    @contextmanager
    def started(cls, words: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[_Program]:
        # Lets the program import the tests' modules.
        inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "drain", *words]
        with tempfile.TemporaryFile() as file:
            process = subprocess.Popen(
                command, env={**inherited, **environment}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
            try:
                yield cls(words, process, file)
            finally:
                process.terminate()
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def check(self) -> None:
        if self.process.poll() is not None:
            raise HarnessError(f"it ended with exit code {self.process.returncode}: {self.written()}")

    def written(self) -> str:
        self.file.seek(0)
        text = self.file.read().decode(errors="replace").strip()
        self.file.seek(0, os.SEEK_END)
        return f"`drain {' '.join(self.words)}` wrote:\n{text[-_SHOWN:]}"


@dataclass(frozen=True, slots=True)
class RunningServers:
    """Servers for a test run."""

    services: Services
    template: str

    @contextmanager
    def for_one_test(self) -> Iterator[DrainServers]:
        """Copy the template database, and empty Redis."""
        name = f"drain_test_{uuid4().hex}"
        postgres, redis_url = self.services.postgres, self.services.redis_url
        create = SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(self.template))
        with psycopg.connect(postgres.url_of("postgres"), autocommit=True) as administrator:
            administrator.execute(create)
            with Redis.from_url(redis_url) as redis:
                redis.flushall()
            try:
                yield DrainServers(postgres.url_of(name), redis_url)
            finally:
                administrator.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


@contextmanager
def started() -> Iterator[RunningServers]:
    """Run both servers during the block."""
    name = "drain_template"
    with services(durable=False) as running:
        with psycopg.connect(running.postgres.url_of("postgres"), autocommit=True) as connection:
            connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        schema.install(running.postgres.url_of(name))
        yield RunningServers(running, name)
