"""`drain rehearse`: today's code runs jobs that have ended, and nothing of that stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from click.testing import CliRunner, Result

from drain.__main__ import main
from drain.contrib.rehearsal import command as rehearse_command, isolated, session
from drain.contrib.rehearsal.difference import ELSEWHERE
from drain.contrib.rehearsal.past import End, PastJob
from drain.contrib.rehearsal.rehearsal import rehearse as rehearse_one
from tests import jobs_to_rehearse
from tests.helpers import query

Rehearse = Callable[..., Result]

DIE = """
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, tag, attempts,
    last_error, reason, explanation, fencing_token)
VALUES (%s, %s, jsonb_build_array(%s::text), '{}', 'mail', 0, now(), now(), %s, 10, %s::jsonb, 'failed',
    'no attempts left', 7)
"""
TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "stale_finishes", "effects", "pairs")


def die(
    url: str, job_id: int, name: str, label: str = "x", error: Any = None, tag: str | None = None
) -> None:
    told = None if error is None else json.dumps({"type": error[0], "message": error[1], "traceback": ""})
    query(url, DIE, job_id, name, label, tag, told)


@pytest.fixture
def url(database_url: str) -> Iterator[str]:
    """A database with tables for effects, in which nothing changes."""
    query(database_url, "CREATE TABLE effects (label text NOT NULL)")
    query(database_url, "CREATE TABLE pairs (number int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    yield database_url
    for table in TABLES:
        assert query(database_url, f"SELECT * FROM {table}") == []
    assert query(database_url, "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 42") == []


@pytest.fixture
def rehearse(url: str, monkeypatch: pytest.MonkeyPatch) -> Rehearse:
    monkeypatch.setenv("TESTS_DATABASE_URL", url)

    def act(*words: str, yes: bool = True) -> Result:
        given = ["rehearse", "--database-url", url, "--jobs", jobs_to_rehearse.MODULE, *words]
        return CliRunner().invoke(main, [*given, "--yes"] if yes else given, catch_exceptions=False)

    return act


def told(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", ["session", "psycopg", "async", "async_session", "steps", "async_steps"])
def test_a_repaired_dead_job_returns_and_leaves_no_trace(url: str, rehearse: Rehearse, name: str) -> None:
    die(url, 1, f"r.{name}", error=("ValueError", "no x"))
    before = query(url, "SELECT * FROM dead_jobs")
    result = rehearse("--dead", "--json")
    (found,) = told(result)
    assert (result.exit_code, found["differs"]) == (1, True)
    assert found["difference"] == "it raised ValueError before, and returned now".replace(
        "returned", "returns"
    )
    assert found["now"]["kind"] == "returned"
    changes = {"inserted": 1, "updated": 0, "deleted": 0}
    assert found["rolled_back"]["tables"]["effects"] == changes | {"updated": int(name == "session")}
    if name == "session":
        assert found["now"]["result"] == '"X"'
        assert found["rolled_back"]["staged"] == 1
        assert found["rolled_back"]["tables"]["staged_jobs"] == changes
    assert query(url, "SELECT * FROM dead_jobs") == before


@pytest.mark.parametrize("token", [1, 7])
def test_a_rehearsed_job_skips_its_recorded_steps(url: str, rehearse: Rehearse, token: int) -> None:
    die(url, 1, "r.steps", "new", ("OSError", "no answer"))
    query(url, "UPDATE dead_jobs SET fencing_token = %s", token)
    query(
        url,
        "INSERT INTO job_steps (job_id, name, result, seconds, fencing_token) VALUES (1, 'charge', '\"old\"', 1, 6)",
    )
    (found,) = told(rehearse("--dead", "--json"))
    assert found["now"]["result"] == '["old","new"]'
    assert query(url, "SELECT name FROM job_steps") == [("charge",)]


def test_a_job_that_fails_as_before_does_not_differ(url: str, rehearse: Rehearse) -> None:
    die(url, 1, "r.raises", "x", ("ValueError", "no x"))
    result = rehearse("--dead")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-2:] == ["rolled back: effects +1", "0 of 1 job differ"]
    die(url, 2, "r.raises", "y", ("ValueError", "no x"))
    die(url, 3, "r.raises", "x", ("KeyError", "'x'"))
    die(url, 4, "r.dead", "x", ("workers.errors.Dead", "x"))
    die(url, 5, "r.defers", "x", ("ValueError", "x"))
    die(url, 6, "r.gone", "x", ("ValueError", "x"))
    die(url, 7, "r.raises", "x")
    result = rehearse("--dead", "--json")
    assert result.exit_code == 1
    gone = "it raises drain.workers.errors.NotRegisteredError now, and raised ValueError before"
    assert {row["id"]: row["difference"] for row in told(result)} == {
        1: None,
        2: "it raises ValueError with another message",
        3: "it raises ValueError now, and raised KeyError before",
        4: None,
        5: "it raised ValueError before, and asks to run later now",
        6: gone,
        7: "it never ran before, and raises ValueError now",
    }


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "/* no */ commit; SELECT 1",
        "ROLLBACK",
        "ROLLBACK; BEGIN",
        "END",
        "PREPARE TRANSACTION $$x$$",
        "ROLLBACK; BEGIN; SELECT 1",
    ],
)
def test_a_job_that_commits_is_detected_and_writes_nothing(
    url: str, rehearse: Rehearse, statement: str
) -> None:
    die(url, 1, "r.commits", statement, ("ValueError", "x"))
    result = rehearse("--dead", "--json")
    assert result.exit_code == 1, result.output
    (found,) = told(result)
    assert found["now"]["kind"] == "left its transaction", found["now"]
    assert found["difference"] == "it ended its transaction with its own SQL, so it cannot be rehearsed"
    assert query(url, "SELECT * FROM effects") == []


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
        "ROLLBACK; BEGIN READ WRITE",
        "ABORT; SET transaction_read_only = off",
    ],
)
def test_a_chained_commit_cannot_start_a_writable_transaction(
    url: str, rehearse: Rehearse, statement: str
) -> None:
    die(url, 1, "r.chains", statement, ("ValueError", "x"))
    for _ in range(2):
        (found,) = told(rehearse("--dead", "--json"))
        assert found["now"]["error"] == "drain.workers.errors.TransactionError", found["now"]
        query(url, "UPDATE dead_jobs SET job_name = 'r.chains_async'")


def test_deferred_constraints_are_checked(url: str, rehearse: Rehearse) -> None:
    die(url, 1, "r.deferred_constraint", error=("ValueError", "x"))
    (found,) = told(rehearse("--dead", "--json"))
    assert found["now"]["error"] == "psycopg.errors.UniqueViolation"
    assert "pairs_number_key" in found["now"]["message"]


def test_a_connection_opened_by_the_job_is_read_only(url: str, rehearse: Rehearse) -> None:
    die(url, 1, "r.elsewhere", error=("ValueError", "x"))
    (found,) = told(rehearse("--dead", "--json"))
    assert found["difference"] == ELSEWHERE
    assert query(url, "SELECT * FROM effects") == []


def test_a_connection_opened_by_the_job_may_write_on_request(url: str, rehearse: Rehearse) -> None:
    die(url, 1, "r.elsewhere", error=("ValueError", "x"))
    (found,) = told(rehearse("--dead", "--writes-elsewhere", "--json"))
    assert found["now"]["kind"] == "returned"
    assert query(url, "DELETE FROM effects RETURNING label") == [("x",)]


def test_a_session_lock_is_released_after_the_rehearsal(url: str, rehearse: Rehearse) -> None:
    die(url, 1, "r.locks", error=("ValueError", "x"))
    die(url, 2, "r.locks", error=("ValueError", "x"))
    assert [row["now"]["kind"] for row in told(rehearse("--dead", "--json"))] == ["returned", "returned"]


def test_a_job_that_takes_too_long_is_interrupted(url: str, rehearse: Rehearse) -> None:
    die(url, 1, "r.sleeps", error=("drain.workers.errors.JobTimeoutError", "x"))
    (found,) = told(rehearse("--dead", "--timeout", "0.2", "--json"))
    assert found["now"]["error"] == "drain.workers.errors.JobTimeoutError"
    assert found["difference"] == "it raises drain.workers.errors.JobTimeoutError with another message"


def test_an_isolated_job_that_dies_or_hangs_does_no_harm(
    url: str, rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "_GRACE_SECONDS", -1.0)
    die(url, 1, "r.dies", error=("ValueError", "x"))
    die(url, 2, "r.psycopg", error=("ValueError", "x"))
    found = {row["id"]: row for row in told(rehearse("--dead", "--isolated", "--timeout", "60", "--json"))}
    assert found[1]["now"]["error"] == "drain.workers.errors.WorkerDiedError"
    assert "signal 9" in found[1]["now"]["message"] or "SIGKILL" in found[1]["now"]["message"]
    assert (found[2]["now"]["kind"], found[2]["rolled_back"]["tables"]["effects"]["inserted"]) == (
        "returned",
        1,
    )
    query(url, "DELETE FROM dead_jobs")
    die(url, 3, "r.sleeps", error=("ValueError", "x"))
    (found,) = told(rehearse("--dead", "--isolated", "--timeout", "0.5", "--json"))
    assert "and was killed" in found["now"]["message"]


def test_jobs_are_selected_shown_and_confirmed(url: str, rehearse: Rehearse) -> None:
    for number in range(1, 6):
        die(url, number, "r.prints", error=("Value\x1b[31mError", "x"), tag=f"t{number}")
    assert [row["id"] for row in told(rehearse("--dead", "2", "4", "--json"))] == [4, 2]
    assert [row["id"] for row in told(rehearse("--dead", "--tag", "t3", "--json"))] == [3]
    assert [row["id"] for row in told(rehearse("--dead", "--where", "id % 2 = 0 -- x", "--json"))] == [4, 2]
    assert len(told(rehearse("--dead", "--limit", "3", "--json"))) == 3
    shown = rehearse("--dead", "--limit", "2")
    assert "a job's own words" not in shown.stdout
    assert "\x1b" not in shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert shown.stdout.splitlines()[-1] == "2 of 2 jobs differ"

    refused = rehearse("--dead", yes=False)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "5 jobs would be run, and mail, requests and all else" in refused.stderr
    for words, text in (
        ((), "name either --dead or --archive"),
        (("--dead", "--where", " "), "--where is empty"),
        (("--dead", "--where", "nope = 1"), '--where cannot be used: column "nope" does not exist'),
        (("--dead", "--where", "true) OR (DELETE FROM dead_jobs"), "--where cannot be used"),
        (("--dead", "99"), "not dead: 99"),
        (("--dead", "--tag", "nobody"), "no job matches"),
    ):
        result = rehearse(*words)
        assert (result.exit_code, text in result.stderr) == (2, True), result.output


def archived(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as `drain archive` does, without Spark."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    at = datetime.now(UTC) - timedelta(days=1)
    empty = {"tag": None, "context": None, "last_error": None, "history": None, "key": None, "result": None}
    always = {"priority": 0, "attempts": 1, "fencing_token": 1, "finished_by": "w", "job_kwargs": "{}"}
    times = dict.fromkeys(("scheduled_at", "staged_at", "moved_at", "claimed_at"), at)
    texts = dict.fromkeys(
        ("tag", "context", "last_error", "history", "key", "result", "finished_by"), pa.string()
    )
    for row in rows:
        day, queue = row.pop("day", "2026-11-20"), row.pop("queue", "mail")
        whole = (
            empty | always | times | {"finished_at": at + timedelta(seconds=2), "superseded_by": None} | row
        )
        kinds = texts | {"superseded_by": pa.int64(), "id": pa.int64(), "fencing_token": pa.int64()}
        schema = pa.schema([(name, kinds.get(name, pa.array([value]).type)) for name, value in whole.items()])
        directory = path / f"finished_date={day}" / f"queue={queue}"
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([whole], schema=schema), directory / f"part-{row['id']}.parquet")
    return path


def test_archived_jobs_are_rehearsed_latest_days_first(url: str, rehearse: Rehearse, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    name = "r.session"
    rows = [
        {
            "id": 1,
            "job_name": name,
            "job_args": '["x"]',
            "result": '"X"',
            "day": "2026-11-18",
            "queue": "007",
        },
        {"id": 2, "job_name": name, "job_args": '["x"]', "result": '"Y"'},
        {"id": 3, "job_name": "r.raises", "job_args": '["x"]', "day": "2026-11-19", "tag": "t"},
        {"id": 4, "job_name": name, "job_args": '["x"]', "superseded_by": 3},
    ]
    path = str(archived(tmp_path / "archive", rows))
    result = rehearse("--archive", path, "--json")
    assert [(row["id"], row["difference"]) for row in told(result)] == [
        (2, "its result is another one"),
        (3, "it returned before, and raises ValueError now"),
        (1, None),
    ]
    assert told(result)[0]["before"]["seconds"] == 2.0

    def ids(*words: str) -> list[int]:
        return [row["id"] for row in told(rehearse("--archive", path, "--json", *words))]

    assert ids("--limit", "1") == [2]
    assert ids("--queue", "007") == [1]
    assert ids("--tag", "t") == [3]
    assert ids("--where", "job_args ->> 0 = 'x' AND finished_date < now() AND result = '\"X\"'") == [1]
    assert "there is no archive at" in rehearse("--archive", f"{tmp_path}/no", "--json").stderr


def test_a_process_that_is_killed_in_a_rehearsal_leaves_nothing(url: str) -> None:
    """The server rolls back: the session ends, and its transaction could not be committed anyway."""
    with session.guarded_session(url) as guarded:
        psycopg.Connection(guarded.pgconn).execute("INSERT INTO effects VALUES ('x')")
        assert guarded.written().tables["effects"].inserted == 1
        with pytest.raises(psycopg.errors.UniqueViolation, match=session.GUARD):
            session.send(guarded.pgconn, b"COMMIT")
        assert guarded.written().has_left


def test_a_rehearsed_job_knows_its_attempt(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from drain import current_job
    from drain.jobs import registry

    seen: list[Any] = []

    def look() -> None:
        job = current_job()
        seen.append((job.id, job.attempt, job.queue, job.tag, job.fencing_token, job.context))

    monkeypatch.setattr(registry, "_jobs", {})
    from drain import job

    job(name="r.look")(look)
    past = PastJob(7, "r.look", "[]", "{}", "mail", "t", "null", 3, 9, End("returned"))
    assert rehearse_one(url, past).end.kind == "returned"
    assert seen == [(7, 3, "mail", "t", 9, "null")]


def test_a_failed_rehearsal_has_its_own_exit_code(
    url: str, rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(url, 1, "session")
    without_rights = f"{url}{'&' if '?' in url else '?'}options=-crole%3Dpg_monitor"
    refused = rehearse("--database-url", without_rights, "--dead")
    assert (refused.exit_code, "permission denied" in refused.stderr) == (2, True)

    def say_no(*_: Any, **__: Any) -> None:
        raise click.Abort

    monkeypatch.setattr(rehearse_command, "_confirm", say_no)
    unconfirmed = rehearse("--dead", yes=False)
    assert (unconfirmed.exit_code, "not confirmed; nothing was rehearsed" in unconfirmed.stderr) == (2, True)
