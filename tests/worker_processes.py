"""Jobs that have been pushed to Redis, and `drain work` processes that run them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg.rows import dict_row
from redis import Redis

from drain import stage_many
from drain.enqueuer.redelivery import Redelivery
from tests import jobs_in_batches as jobs
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    Command,
    connected,
    drain_command,
    effects,
    environment,
    new_enqueuer,
    query,
    wait_until,
)

TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs")


@dataclass(frozen=True)
class Yard:
    database_url: str
    redis_url: str

    def env(self, **more: str) -> dict[str, str]:
        told = {"DRAIN_JOBS": jobs.MODULE, "PYTHONPATH": str(ROOT)}
        return environment(self.database_url, self.redis_url, **told | more)

    @contextmanager
    def working(self, *words: str, **more: str) -> Iterator[Command]:
        """A `drain work` process that has started its first worker."""
        with drain_command("work", *words, env=self.env(**more)) as command:
            wait_until(lambda: command.events("started") or command.poll() is not None, PATIENCE_SECONDS)
            yield command

    def stage(self, job: Any, *labels: Any, **options: Any) -> list[int]:
        connection = connected(self.database_url)
        with connection.transaction():
            return stage_many(connection, job, [(label,) for label in labels], **options)

    def push(self) -> None:
        """Let an enqueuer push what is staged."""
        with new_enqueuer(self.database_url, self.redis_url) as enqueuer:
            Redelivery(enqueuer).recover()
            enqueuer.drain()

    def pushed(self, job: Any, *labels: Any, **options: Any) -> list[int]:
        """Stage a job for each label, and push them."""
        ids = self.stage(job, *labels, **options)
        self.push()
        return ids

    def redeliver(self) -> None:
        """Push again all that is overdue, with no grace for what is in no list."""
        with new_enqueuer(self.database_url, self.redis_url) as enqueuer:
            redelivery = Redelivery(enqueuer, lost_after_seconds=0)
            redelivery.recover()
            redelivery.run_once()
            redelivery.run_once()

    def row(self, job_id: int) -> dict[str, Any]:
        """All that its table says about the job, and which that is."""
        for table in TABLES:
            cursor = connected(self.database_url).cursor(row_factory=dict_row)
            statement = f"SELECT *, '{table}' AS place FROM {table} WHERE id = %s"
            found = cursor.execute(statement.encode(), [job_id]).fetchone()
            if found is not None:
                return found
        raise AssertionError(f"job {job_id} is nowhere")

    def place(self, job_id: int) -> str:
        return str(self.row(job_id)["place"])

    def all_are(self, table: str, ids: list[int]) -> bool:
        ((count,),) = query(self.database_url, f"SELECT count(*) FROM {table} WHERE id = ANY (%s)", ids)
        return bool(count == len(ids))

    def wait_for(self, table: str, ids: list[int]) -> None:
        wait_until(lambda: self.all_are(table, ids), PATIENCE_SECONDS)

    def effects(self) -> list[str]:
        return effects(self.database_url)

    def say(self, word: str) -> None:
        """Let jobs that wait for this word go on."""
        jobs.leave_effect(self.database_url, word)

    def redis(self) -> "Redis":
        return Redis.from_url(self.redis_url)


def children(command: Command) -> list[int]:
    """Ids of the worker processes that it supervises now."""
    listed = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def kill_worker(command: Command, number: int = signal.SIGKILL) -> int:
    """Kill the only worker process, but not its supervisor; returns its id."""
    (pid,) = children(command)
    os.kill(pid, number)
    return pid


def threads(pid: int) -> set[int]:
    """Ids of the threads of a process; that of the main thread is its own."""
    return {int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()}


def sleeps(pid: int) -> bool:
    """Whether the main thread of a process waits to be woken."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
