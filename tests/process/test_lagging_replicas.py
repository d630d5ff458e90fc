"""A failover to a replica that lagged behind, under workers that go on: no job of the new history is lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

from drain.embedded import Services
from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, Command, disconnect, query, wait_until
from tests.worker_processes import Yard


class Replica:
    """The database as it is now; once promoted, it takes the place of the database, and what came later is gone."""

    def __init__(self, administrator: str, database_url: str) -> None:
        self._administrator = administrator
        name = str(conninfo_to_dict(database_url)["dbname"])
        self._names = {"name": Identifier(name), "replica": Identifier(f"{name}_replica")} | {
            "lost": Identifier(f"{name}_lost"),
            "literal": name,
        }
        disconnect()
        self._execute("CREATE DATABASE {replica} TEMPLATE {name}")

    def promote(self) -> None:
        disconnect()
        self._execute(
            "ALTER DATABASE {name} ALLOW_CONNECTIONS false",
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = {literal}",
            "ALTER DATABASE {name} RENAME TO {lost}",
            "ALTER DATABASE {replica} RENAME TO {name}",
        )

    def drop(self) -> None:
        self._execute(
            "DROP DATABASE IF EXISTS {replica} WITH (FORCE)", "DROP DATABASE IF EXISTS {lost} WITH (FORCE)"
        )

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self._administrator, autocommit=True) as connection:
            for statement in statements:
                connection.execute(SQL(statement).format(**self._names))


@pytest.fixture
def replicate(yard: Yard, servers: Services) -> Iterator[Callable[[], Replica]]:
    made: list[Replica] = []

    def replicate() -> Replica:
        made.append(Replica(servers.postgres.url, yard.database_url))
        return made[0]

    yield replicate
    for replica in made:
        replica.drop()


def begun(path: Path) -> bool:
    """Whether a job that waits for this file runs."""
    return any(path.parent.glob(f"{path.name}.*"))


def wait_until_refused(yard: Yard, worker: Command, job_id: int) -> None:
    wait_until(lambda: worker.events("stale_finish"), PATIENCE_SECONDS)
    refused = "SELECT id, fencing_token, claimed_by FROM stale_finishes"
    ((found, token, by),) = wait_until(lambda: query(yard.database_url, refused), PATIENCE_SECONDS)
    assert (found, token) == (job_id, 1)
    assert by is not None


@pytest.mark.parametrize("lagged", ["behind the job", "behind its claim"])
def test_a_worker_that_lost_its_claim_in_a_failover_finishes_no_other_claim(
    yard: Yard, tmp_path: Path, replicate: Callable[[], Replica], lagged: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    if lagged == "behind the job":
        replica = replicate()
        (job_id,) = yard.pushed(jobs.note_after_file, str(first))
    else:
        (job_id,) = yard.pushed(jobs.note_after_file, str(first))
        replica = replicate()
    with yard.working("default") as survivor:
        wait_until(lambda: begun(first), PATIENCE_SECONDS)
        replica.promote()
        if lagged == "behind the job":
            # The sequence gives the same id again.
            assert yard.pushed(jobs.note_after_file, str(second), queue="other") == [job_id]
        else:
            query(
                yard.database_url, "UPDATE inflight_jobs SET queue = 'other', job_args = %s", f'["{second}"]'
            )
            yard.redeliver()
        with yard.working("other") as other:
            wait_until(lambda: begun(second), PATIENCE_SECONDS)
            assert yard.row(job_id)["fencing_token"] == 1
            first.touch()
            wait_until_refused(yard, survivor, job_id)
            assert yard.place(job_id) == "inflight_jobs"
            second.touch()
            yard.wait_for("finished_jobs", [job_id])
            assert not other.events("stale_finish")
    assert yard.effects() == [str(second)]


def test_a_process_does_not_claim_a_job_again_that_it_still_runs(
    yard: Yard, tmp_path: Path, replicate: Callable[[], Replica]
) -> None:
    path = tmp_path / "go"
    (job_id,) = yard.pushed(jobs.note_after_file, str(path))
    replica = replicate()
    with yard.working("--threads", "2") as worker, yard.redis() as redis:
        wait_until(lambda: begun(path), PATIENCE_SECONDS)
        replica.promote()
        yard.redeliver()
        wait_until(lambda: not redis.llen("rq:queue:default"), PATIENCE_SECONDS)
        # The next job is claimed after whatever was popped before it.
        yard.pushed(jobs.note, "next")
        wait_until(lambda: "next" in yard.effects(), PATIENCE_SECONDS)
        assert yard.row(job_id)["fencing_token"] == 0
        path.touch()
        wait_until_refused(yard, worker, job_id)
        assert yard.effects() == ["next"]
        yard.redeliver()
        yard.wait_for("finished_jobs", [job_id])
    assert yard.effects() == ["next", str(path)]
    assert yard.row(job_id)["fencing_token"] == 1
