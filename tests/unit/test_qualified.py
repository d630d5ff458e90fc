"""Statements of an application's transaction, with the schema of our tables."""

import re

import pytest

from drain.database import names, schema
from drain.database.qualified import qualified, within
from drain.errors import ConfigError
from drain.tables import cancellations, crons, finishes, idempotency, inserts, leases, pauses, rules

STATEMENTS = [
    inserts.insert_one(("job_name", "job_args")),
    idempotency.STAGE_ONCE,
    cancellations.WHEREABOUTS,
    cancellations._CANCEL_STAGED,
    cancellations._CANCEL_INFLIGHT,
    crons.PUT,
    crons.TAKE_AWAY,
    rules.READ,
    rules.DELETE,
    pauses.PAUSE,
    pauses.RESUME,
    pauses.READ,
    finishes.FINISH_WITHOUT_WAIT,
    finishes.FINISH_OR_FAIL,
    finishes.IS_FINISHED,
    leases.IS_CURRENT,
    cancellations.IS_CANCELLED,
]


@pytest.fixture
def in_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAIN_SCHEMA", "jobs")


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_is_unchanged_if_no_schema_is_set(
    statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("", " "):
        monkeypatch.setenv("DRAIN_SCHEMA", text)
        assert qualified(statement) is statement
    monkeypatch.delenv("DRAIN_SCHEMA")
    assert qualified(statement) is statement


@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_of_our_tables_and_functions_is_qualified_once(statement: str, in_jobs: None) -> None:
    found = qualified(statement)

    ours = "|".join([*names.tables_in(schema.text()), r"drain_\w+"])
    bare = re.findall(rf"\b(?:FROM|INTO|UPDATE|JOIN)\s+({ours})\b|(?<!\.)\b(drain_\w+)\(", found)
    assert bare == []
    assert "jobs." in found
    assert found.replace("jobs.", "") == statement.replace("jobs.", "")
    assert qualified(found) == found


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_already_qualified_for_a_connection_is_unchanged(statement: str, in_jobs: None) -> None:
    assert within("jobs", statement) == qualified(statement) == within("other", qualified(statement))
    assert within(r'"My \1 jobs"', statement).count(r'"My \1 jobs".') == qualified(statement).count("jobs.")
    assert within("", statement) is statement


@pytest.mark.parametrize(
    ("statement", "means"),
    [
        (
            "INSERT INTO crons (name) VALUES (1) ON CONFLICT (name) DO UPDATE SET cron = crons.cron",
            "INSERT INTO jobs.crons (name) VALUES (1) ON CONFLICT (name) DO UPDATE SET cron = crons.cron",
        ),
        ("SELECT 'staged_jobs' FROM queues_of_theirs", "SELECT 'staged_jobs' FROM queues_of_theirs"),
        ("SELECT * FROM drain_job_state(1)", "SELECT * FROM jobs.drain_job_state(1)"),
        (
            "FROM inflight_jobs\nJOIN queues USING (queue)",
            "FROM jobs.inflight_jobs\nJOIN jobs.queues USING (queue)",
        ),
    ],
)
def test_only_table_names_and_function_calls_are_qualified(statement: str, means: str, in_jobs: None) -> None:
    assert qualified(statement) == means


def test_an_invalid_schema_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAIN_SCHEMA", "jobs; DROP TABLE orders")

    with pytest.raises(ConfigError, match="DRAIN_SCHEMA must be the name of a schema"):
        qualified("SELECT FROM staged_jobs")
