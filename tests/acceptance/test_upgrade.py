"""An upgrade of a database that is in use: by jobs in every state, and by programs of the version before."""

import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from drain.database import schema
from drain.tables import dead
from drain.tables.dead import Selection
from tests import jobs_in_batches as jobs
from tests.helpers import (
    DRAIN,
    PATIENCE_SECONDS,
    ROOT,
    Command,
    drain_command,
    effects,
    end,
    environment,
    ids_in,
    query,
    wait_until,
)
from tests.worker_processes import Yard, kill_worker

# The last commit whose schema is version 8.
OLD = "1f8af8d714369d7427d17b850bdc4e31b6d7a2fe"
RQ = "from rq.cli import main; main()"
WHERE = """
import cli, drain
from drain import workers
from drain.database import schema
print(schema.VERSION, cli.__file__, drain.__file__, workers.__file__)
"""
# Stages until it is ended, and says which commits it knows of.
PRODUCER = """
import os, sys, time, psycopg, drain
with psycopg.connect(os.environ["DRAIN_DATABASE_URL"]) as connection:
    for number in range(1_000_000):
        job_id = drain.stage(connection, "tests.jobs_in_batches.note_in_transaction", [f"{sys.argv[1]} {number}"])
        connection.commit()
        print(job_id, flush=True)
        time.sleep(0.01)
"""
JOB = "tests.jobs_in_batches.note_in_transaction"


@dataclass(frozen=True)
class Program:
    """One version of job-drain, whose processes use these servers."""

    directory: Path
    database_url: str
    redis_url: str

    def start(self, *words: str, program: str = DRAIN) -> AbstractContextManager[Command]:
        told = {"DRAIN_JOBS": jobs.MODULE, "PYTHONPATH": str(self.directory)}
        env = environment(self.database_url, self.redis_url, **told)
        return drain_command(*words, env=env, program=program, cwd=self.directory)

    @contextmanager
    def started(self, event: str, *words: str) -> Iterator[Command]:
        """A process that has logged this event."""
        with self.start(*words) as command:
            wait_until(lambda: command.events(event), PATIENCE_SECONDS)
            yield command

    def rq_worker(self, *words: str) -> AbstractContextManager[Command]:
        return self.start("worker", "--url", self.redis_url, *words, program=RQ)

    def refuses(self, *words: str) -> str:
        """What it says when it cannot work."""
        with self.start(*words) as command:
            assert command.wait(PATIENCE_SECONDS) == 1
            return command.output


@pytest.fixture(scope="module")
def old_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of version 8, as it was committed."""
    try:
        archive = subprocess.run(
            ["git", "archive", "--format=tar", OLD], cwd=ROOT, capture_output=True, check=True, timeout=60
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        pytest.skip(
            f"the commit {OLD} is not to be had here, which needs git and a clone with its history "
            f"(git fetch --unshallow): {said.decode().strip()}"
        )
    directory = tmp_path_factory.mktemp("version-8")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory


@pytest.fixture
def old(old_directory: Path, empty_database_url: str, redis_url: str) -> Program:
    program = Program(old_directory, empty_database_url, redis_url)
    with program.start(program=WHERE) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        version, *files = command.output.split()
    assert version == "8"
    assert all(Path(file).is_relative_to(old_directory) for file in files)
    return program


@pytest.fixture
def new(empty_database_url: str, redis_url: str) -> Program:
    return Program(ROOT, empty_database_url, redis_url)


def finished_of(database_url: str, label: str) -> int:
    ((count,),) = query(
        database_url, "SELECT count(*) FROM finished_jobs WHERE job_args ->> 0 LIKE %s", f"{label}%"
    )
    return int(count)


def wait_for_more(program: Program, label: str, more: int = 20) -> None:
    """Wait until so many more jobs with this label have finished."""
    before = finished_of(program.database_url, label)
    wait_until(lambda: finished_of(program.database_url, label) >= before + more, PATIENCE_SECONDS)


def stage_for_rq(program: Program, label: str) -> None:
    stage = (
        "INSERT INTO staged_jobs (job_name, job_args, queue) VALUES (%s, jsonb_build_array(%s::text), 'rq')"
    )
    query(program.database_url, stage, JOB, label)


def upgraded(program: Program) -> bool:
    """Whether `drain init` has done its work; False if it found the tables in use for too long."""
    with program.start("init") as init:
        code = init.wait(PATIENCE_SECONDS)
        assert code == 0 or "run `drain init` again" in init.output
        return code == 0


def complaints(command: Command) -> list[str]:
    return [line for line in command.output.splitlines() if '"level": "info"' not in line]


def test_old_programs_keep_working_through_the_upgrade(old: Program, new: Program) -> None:
    with ExitStack() as stack:
        url, run = old.database_url, stack.enter_context
        with old.start("init") as init:
            assert init.wait(PATIENCE_SECONDS) == 0
        jobs.create_effects(url)
        old_leader = run(old.started("leading", "run", "--metrics-port", "0"))
        old_worker = run(old.started("started", "work"))
        old_rq_worker = run(old.rq_worker("rq"))
        old_producer = run(old.start("old", program=PRODUCER))
        stage_for_rq(old, "rq old")
        wait_for_more(old, "old")
        wait_until(lambda: finished_of(url, "rq old") == 1, PATIENCE_SECONDS)

        # It forks for each job, and a child of the old version would refuse to work.
        end(old_rq_worker)
        stage_for_rq(old, "rq meanwhile")
        wait_until(lambda: upgraded(new), PATIENCE_SECONDS)

        wait_for_more(old, "old", 100)
        assert complaints(old_leader) == complaints(old_worker) == []
        new_worker = run(new.started("started", "work"))
        run(new.rq_worker("rq"))
        assert end(old_worker) == 0
        wait_for_more(old, "old")
        new_leader = run(new.start("run", "--metrics-port", "0"))
        wait_until(lambda: "standing by" in new_leader.output, PATIENCE_SECONDS)
        assert end(old_leader) == 0
        new_producer = run(new.start("new", program=PRODUCER))
        wait_for_more(new, "new")
        for producer in (old_producer, new_producer):
            end(producer)
        stage_for_rq(new, "rq new")
        wait_until(
            lambda: not ids_in(url, "staged_jobs") and not ids_in(url, "inflight_jobs"), PATIENCE_SECONDS
        )

        assert complaints(old_leader) == complaints(old_worker) == []
        assert complaints(new_leader) == complaints(new_worker) == []
        committed = {int(line) for each in (old_producer, new_producer) for line in each.output.split()}
        finished = ids_in(url, "finished_jobs")
        assert committed <= set(finished)
        assert len(finished) == len(set(finished))
        assert ids_in(url, "dead_jobs") == []
        # The effect of a job and its finish are one commit.
        labels = [label for (label,) in query(url, "SELECT job_args ->> 0 FROM finished_jobs")]
        assert sorted(effects(url)) == sorted(labels)
        with new.start("audit") as audit:
            assert audit.wait(PATIENCE_SECONDS) == 0

        for words in (["run", "--once"], ["work", "--burst"], ["init"], ["status"]):
            said = old.refuses(*words)
            assert said.count("\n") == 1
            assert "upgrade job-drain here" in said


def test_running_workers_and_their_children_survive_an_upgrade(database_url: str, redis_url: str) -> None:
    jobs.create_effects(database_url)
    yard = Yard(database_url, redis_url)
    with yard.working() as command:
        query(database_url, "INSERT INTO drain_schema (version) VALUES (%s)", schema.VERSION + 1)
        child = yard.pushed(jobs.isolated_in_transaction, "in a child")
        yard.wait_for("finished_jobs", child)
        kill_worker(command)
        successor = yard.pushed(jobs.note_in_transaction, "in the next process")
        yard.wait_for("finished_jobs", successor)
        new = Program(ROOT, database_url, redis_url)
        assert "upgrade job-drain here" in new.refuses("work", "--burst")

    assert effects(database_url) == ["in a child", "in the next process"]


def test_a_job_taken_by_an_old_rq_worker_after_an_upgrade_survives(old: Program, new: Program) -> None:
    with old.start("init") as init:
        assert init.wait(PATIENCE_SECONDS) == 0
    jobs.create_effects(old.database_url)
    schema.install(new.database_url)
    yard = Yard(new.database_url, new.redis_url)
    (job_id,) = yard.pushed(jobs.note_in_transaction, "once", queue="rq")
    with old.rq_worker("--burst", "rq") as refused:
        refused.wait(PATIENCE_SECONDS)

    row = yard.row(job_id)
    assert (row["place"], row["attempts"], row["fencing_token"]) == ("inflight_jobs", 0, 0)
    yard.redeliver()
    with new.rq_worker("--burst", "rq") as worker:
        assert worker.wait(PATIENCE_SECONDS) == 0
    assert yard.row(job_id)["attempts"] == 1
    assert jobs.effects(new.database_url) == ["once"]


def test_a_new_program_refuses_the_old_version_in_one_line(old: Program, new: Program) -> None:
    with old.start("init") as init:
        assert init.wait(PATIENCE_SECONDS) == 0

    for words in (["run", "--once"], ["work", "--burst"], ["status"]):
        said = new.refuses(*words)
        assert said.count("\n") == 1
        assert "run `drain init` to bring it up to date" in said


IN_EVERY_STATE = """
INSERT INTO staged_jobs (job_name, job_args, scheduled_at, staged_at, matured_at) VALUES
    (%(job)s, '["due"]', now(), now(), NULL),
    (%(job)s, '["scheduled"]', now() + interval '1 day', now(), NULL),
    (%(job)s, '["coming due"]', now() - interval '1 hour', now() - interval '2 hours', NULL),
    (%(job)s, '["matured"]', now() - interval '1 hour', now() - interval '2 hours', now());
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery,
    attempts, fencing_token, claimed_at, claimed_by, lease_expires_at, next_run_at, last_error, failed_at)
VALUES
    (101, %(job)s, '["delivered"]', '{}', 'default', 0, now(), now(), 1, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL),
    (102, %(job)s, '["claimed"]', '{}', 'default', 0, now(), now(), 2, 1, 1, now(), 'one', now(), NULL, NULL, NULL),
    (103, %(job)s, '["waiting"]', '{}', 'default', 0, now(), now(), 3, 1, 1, now(), 'one', NULL, now(), '{}', now());
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token)
SELECT 200 + day, %(job)s, jsonb_build_array('finished'), '{}', 'default', 0, at, at, at, at, at, 1, 1
FROM unnest(ARRAY[-3, -1, 0]) AS day, LATERAL (SELECT now() + make_interval(days => day)) AS day_at (at);
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, attempts,
    fencing_token, reason, explanation)
VALUES (301, %(job)s, '["dead"]', '{}', 'default', 0, now(), now(), 1, 1, 'failed', 'no luck');
INSERT INTO stale_finishes (id, fencing_token, claimed_by, outcome) VALUES (102, 0, 'two', 'finished');
INSERT INTO bulk_runs (run_id, rows) VALUES ('reindex-1', 10);
SELECT drain_create_side_table('reindex-2');
SELECT setval('drain_last_delivery', 3), setval('drain_pushed_up_to', 3), setval('staged_jobs_id_seq', 1000);
"""


def test_jobs_in_every_state_are_finished_once_after_the_upgrade(new: Program) -> None:
    url = new.database_url
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(schema.script(version=1).encode())
        connection.execute(IN_EVERY_STATE, {"job": JOB})
    jobs.create_effects(url)

    schema.install(url)

    with psycopg.connect(url) as connection:
        assert dead.revive(connection, Selection()) == 1
    query(url, "UPDATE staged_jobs SET scheduled_at = now() WHERE job_args = '[\"scheduled\"]'")
    with (
        new.started("leading", "run", "--metrics-port", "0") as leader,
        new.started("started", "work") as worker,
    ):
        wait_until(lambda: len(ids_in(url, "finished_jobs")) == 11, PATIENCE_SECONDS)
        assert complaints(worker) == []
        assert leader.poll() is None
    assert sorted(effects(url)) == [
        "claimed", "coming due", "dead", "delivered", "due", "matured", "scheduled", "waiting",
    ]  # fmt: skip
    with new.start("audit") as audit:
        assert audit.wait(PATIENCE_SECONDS) == 0
    assert query(url, "SELECT rows FROM bulk_runs") == [(10,)]
    assert query(url, "SELECT relname FROM pg_class WHERE relname ~ '^bulk_[0-9a-f]{32}$'") == []
