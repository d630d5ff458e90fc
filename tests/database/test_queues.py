"""`drain.queues` and `drain queue`: rules and pauses, changed in a transaction and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from click.testing import CliRunner, Result
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

import drain
from drain import queues
from drain.__main__ import main
from drain.admission.options import as_options
from drain.admission.rules import Rate, Rules
from drain.errors import ConfigError, StageError
from drain.jobs.executors import Connectable
from drain.tables import rules as ruled
from tests.helpers import query, stage_jobs

Opened = tuple[Connectable, Callable[[], None], Callable[[], None]]


@contextmanager
def a_session(url: str) -> Iterator[Opened]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    with Session(engine) as session:
        yield session, session.commit, session.rollback
    engine.dispose()


@contextmanager
def a_psycopg_cursor(url: str) -> Iterator[Opened]:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        yield cursor, connection.commit, connection.rollback


@contextmanager
def a_connection_with_dictionaries_for_rows(url: str) -> Iterator[Opened]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield connection, connection.commit, connection.rollback


def greet() -> None:
    """A function that is paused by its name."""


EVERYTHING: dict[str, Any] = {
    "running": 50,
    "running_per_key": 4,
    "rate": "100/s",
    "rate_per_key": Rate(10, 60.0),
    "burst": 20,
    "fair": True,
    "weights": {"acme": 3, "it's 100% %(x)s :y": 0.5},
}
OF_A_FILE = """
[calls]
running = 50
rate = "100/s"

[mail]
fair = true
weights = { acme = 3 }
"""


@pytest.mark.parametrize("opened", [a_session, a_psycopg_cursor, a_connection_with_dictionaries_for_rows])
def test_rules_and_pauses_are_part_of_the_callers_transaction(
    database_url: str, opened: Callable[[str], AbstractContextManager[Opened]]
) -> None:
    with opened(database_url) as (connection, commit, rollback):
        assert queues.set(connection, "calls", **EVERYTHING) == queues.show(connection, "calls")
        queues.pause(connection, "calls", key="acme", until=timedelta(minutes=1), reason="why: 100 %")
        assert [each.key for each in queues.pauses(connection)] == ["acme"]
        rollback()
        assert queues.show(connection, "calls") is None
        assert queues.list(connection) == []
        assert queues.pauses(connection) == []

        queues.set(connection, "calls", **EVERYTHING)
        queues.set(connection, "calls", running=None, rate_per_key="1/h")
        queues.pause(connection, job=greet)
        commit()
    with psycopg.connect(database_url) as reader:
        (rules,) = queues.list(reader)
        row = ruled.read(reader)["calls"]
    assert (rules.running, rules.rate_per_key) == (None, Rate(1, 3600.0))
    assert rules.weights == EVERYTHING["weights"]
    assert Rules.from_row(row) == rules
    assert query(database_url, "SELECT queue, job_name, key, until FROM queue_pauses") == [
        (None, f"{__name__}.greet", None, None)
    ]


def test_an_application_sets_rules_through_drain_queues(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        drain.queues.set(connection, "events", ordered=True, on_dead="skip")
        drain.queues.set(connection, "slow", aging=timedelta(minutes=1))
        assert [as_options(each) for each in drain.queues.list(connection)] == [
            {"ordered": True, "on_dead": "skip"},
            {"aging": 60.0},
        ]
        assert drain.queues.unset(connection, "events")
        assert not drain.queues.unset(connection, "events")
        assert drain.queues.set(connection, "slow", aging=None) == Rules("slow")
        assert drain.queues.list(connection) == []


def test_an_invalid_rule_leaves_the_transaction_unchanged(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        queues.set(connection, "calls", running=5)
        for options in ({"running_per_key": 6}, {"rate": "0/s"}, {"burst": 1}, {}):
            with pytest.raises(ConfigError):
                queues.set(connection, "calls", **options)
        with pytest.raises(ConfigError, match="not a queue name"):
            queues.set(connection, "a b", running=1)
        named: Any
        for named in ({}, {"key": ""}, {"key": "k" * 256}, {"job": ""}, {"queue": "a b"}):
            with pytest.raises(ConfigError):
                queues.pause(connection, **named)
        never = datetime.max.replace(tzinfo=UTC)
        for until in (datetime.now(), datetime.now(UTC) - timedelta(seconds=9), never, 0, -1, "10m"):  # noqa: DTZ005
            with pytest.raises(ConfigError, match="until"):
                queues.pause(connection, "calls", until=until)  # type: ignore[arg-type]
        assert queues.pauses(connection) == []
        assert queues.show(connection, "calls") == Rules("calls", running=5)
    with pytest.raises(StageError, match="pass a SQLAlchemy Session or Connection"):
        queues.list(object())  # type: ignore[arg-type]


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "running_per_key_must_not_exceed_running": {"running": 3, "running_per_key": 4},
    "ordered_needs_running_per_key_of_one": {"ordered": True, "running_per_key": 2},
    "weights_need_fair": {"weights": '{"a": 2}'},
    "burst_needs_a_rate": {"burst": 2},
    "burst_must_fill_within_a_year": {"burst": 366, "rate": "1/d"},
    "burst_must_fill_within_a_year_for_each_key": {"burst": 366, "rate_per_key": "1/d"},
    "keys_of_weights_must_have_1_to_255_characters": {"fair": True, "weights": '{"": 2}'},
    "on_dead_needs_ordered": {"on_dead": "skip"},
    "aging_needs_a_queue_without_rules_for_keys": {"aging_seconds": 60, "fair": True},
    "running_must_be_positive": {"running": 0},
    "rate_must_be_a_number_a_time": {"rate": "0/s"},
    "burst_must_be_positive": {"burst": 0, "rate": "1/s"},
    "weights_must_be_an_object": {"fair": True, "weights": "[]"},
    "on_dead_must_be_hold_or_skip": {"ordered": True, "on_dead": "x"},
    "weights_must_be_numbers_from_one_thousandth_to_1000": {"fair": True, "weights": '{"a": 1, "b": -1}'},
    "aging_seconds_must_be_positive_and_at_most_a_year": {"aging_seconds": float("nan")},
    "queue_must_be_a_name_that_rq_can_carry": {"queue": "a b", "fair": True},
}


def test_two_transactions_cannot_set_rules_that_contradict_each_other(database_url: str) -> None:
    checks = "SELECT conname FROM pg_constraint WHERE conrelid = 'queues'::regclass AND contype = 'c'"
    assert {name for (name,) in query(database_url, checks)} == set(CONTRADICTIONS)
    for name, columns in CONTRADICTIONS.items():
        values = {"queue": "calls", **columns}
        statement = f"INSERT INTO queues ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))})"
        with pytest.raises(psycopg.errors.CheckViolation) as caught:
            query(database_url, statement, *values.values())
        assert caught.value.diag.constraint_name == name


@pytest.mark.parametrize(
    "columns",
    [
        {"queue": "calls", "until": "infinity"},
        {"queue": "calls", "paused_at": "-infinity"},
        {"queue": "calls", "key": ""},
        {"key": "k" * 256},
    ],
)
def test_a_pause_that_no_leader_could_read_is_refused(database_url: str, columns: dict[str, str]) -> None:
    statement = f"INSERT INTO queue_pauses ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})"
    with pytest.raises(psycopg.errors.CheckViolation):
        query(database_url, statement, *columns.values())


@pytest.fixture
def command(database_url: str) -> Callable[..., Result]:
    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["queue", *words], env={"DRAIN_DATABASE_URL": database_url})

    return run


Command = Callable[..., Result]


def test_command_options_change_only_their_own_rules(command: Command) -> None:
    assert (
        command("set", "calls", "--running", "50", "--running-per-key", "4", "--rate", "100/s").exit_code == 0
    )
    more = (
        "--rate-per-key",
        "10/min",
        "--burst",
        "20",
        "--fair",
        "--weight",
        "acme=3",
        "--weight",
        "a=b=0.5",
    )
    assert command("set", "calls", *more).exit_code == 0
    result = command("set", "calls", "--running", "none", "--weight", "acme=none", "--weight", "zoo=2")
    assert result.exit_code == 0
    assert "is unknown" in result.stderr
    assert json.loads(command("show", "calls", "--json").stdout) == {
        "queue": "calls",
        "rules": {
            "running_per_key": 4, "rate": "100/s", "rate_per_key": "10/min", "burst": 20,
            "fair": True, "weights": {"a=b": 0.5, "zoo": 2},
        },
        "pauses": [],
    }  # fmt: skip
    assert command("set", "calls", "--weight", "none", "--no-fair").exit_code == 0
    assert command("set", "events", "--ordered", "--on-dead", "skip").exit_code == 0
    assert command("set", "slow", "--aging", "1m").exit_code == 0
    listed = json.loads(command("list", "--json").stdout)
    assert [each["queue"] for each in listed["queues"]] == ["calls", "events", "slow"]
    assert command("unset", "calls", "events").exit_code == 0
    assert [each["queue"] for each in json.loads(command("list", "--json").stdout)["queues"]] == ["slow"]


def test_a_queue_without_rules_is_listed_while_it_has_jobs(command: Any, database_url: str) -> None:
    query(database_url, "INSERT INTO staged_jobs (job_name, queue) VALUES ('m.f', 'mail')")
    assert command("set", "calls", "--running", "5").exit_code == 0
    listed = json.loads(command("list", "--json").stdout)["queues"]
    assert listed == [{"queue": "calls", "rules": {"running": 5}}, {"queue": "mail", "rules": {}}]
    (line,) = [line for line in command("list").stdout.splitlines() if line.startswith("mail")]
    assert line.split() == ["mail", "no", "rules"]


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["set", "calls"], 1, "queue calls: no rule given; known rules: running, "),
        (["set", "calls", "--rate", "0/s"], 1, "queue calls: a rate of zero would start nothing"),
        (
            ["set", "calls", "--weight", "acme"],
            1,
            "a weight must be KEY=N, such as acme=3, not 'acme'",
        ),
        (["set", "calls", "--weight", "acme=2"], 1, "weights need fair"),
        (["set", "calls", "--running", "0"], 2, "0 is not in the range"),
        (["set", "calls", "--running", "many"], 2, "'many' is neither a whole number nor 'none'"),
        (["set", "calls", "--aging", "soon"], 2, "a length of time is written as 90s"),
        (["set", "a b", "--running", "1"], 1, "'a b' is not a queue name"),
        (["unset", "calls"], 1, "no rules to remove: calls; nothing was done"),
        (["pause"], 2, "name a queue, --job or --key"),
        (["pause", "calls", "--for", "0s"], 1, "until must be a time, or a duration above 0"),
        (["pause", "--key", "k" * 256], 1, "key must have 1 to 255 characters, not 256"),
        (
            ["pause", "calls", "--reason", "r" * 1001],
            1,
            "reason must have at most 1,000 characters, not 1,001",
        ),
        (["pause", "--job", "j" * 256], 1, "job must have at most 255 characters"),
        (["resume", "calls"], 1, "not paused: queue calls; see `drain queue list`"),
        (["apply", "missing.toml"], 1, "missing.toml: No such file or directory"),
    ],
)
def test_bad_command_input_is_reported_in_one_line(
    command: Command, words: list[str], code: int, complaint: str
) -> None:
    result = command(*words)
    assert result.exit_code == code
    assert complaint in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert [
        line for line in result.stderr.splitlines() if line.startswith("Error")
    ] == result.stderr.splitlines()[-1:]
    assert json.loads(command("list", "--json").stdout) == {"queues": [], "pauses": []}


def test_pauses_are_listed_and_resumed_by_the_same_names(command: Command, database_url: str) -> None:
    stage_jobs(database_url, queue="calls")
    result = command("pause", "calls", "--for", "10m", "--reason", "their server is down")
    assert (result.stdout, result.stderr) == ("paused: queue calls\n", "")
    result = command("pause", "calls", "--key", "acme")
    assert result.stderr == "key 'acme' is unknown: no job with it is staged, in flight or dead\n"
    assert command("pause", "--job", "m.f").exit_code == 0
    found = json.loads(command("list", "--json").stdout)["pauses"]
    assert [(each["queue"], each["job"], each["key"], each["reason"]) for each in found] == [
        ("calls", None, None, "their server is down"),
        ("calls", None, "acme", None),
        (None, "m.f", None, None),
    ]
    assert found[0]["until"] is not None
    assert len(json.loads(command("show", "calls", "--json").stdout)["pauses"]) == 3
    # The pause of a job name applies to each queue, and makes none of them a known one.
    assert command("show", "cals").stderr.startswith("queue 'cals' is unknown")

    result = command("resume", "calls")
    assert result.stdout == (
        "resumed: queue calls\nqueue calls has 1 other pause; see `drain queue show calls`\n"
    )
    assert command("resume", "calls", "--key", "acme").exit_code == 0
    assert command("resume", "--job", "m.f").exit_code == 0
    assert json.loads(command("list", "--json").stdout)["pauses"] == []


def test_a_file_is_applied_as_a_whole_after_showing_the_difference(
    command: Command, database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "queues.toml"
    file.write_text(OF_A_FILE)
    command("set", "calls", "--running", "10", "--burst", "3", "--rate", "100/s")
    command("set", "old", "--running", "1")

    looked = command("apply", str(file), "--dry-run")
    assert looked.stdout == (
        "calls\n  running         10 -> 50\n  burst           3 -> none\n"
        "mail\n  fair            none -> yes\n  weights         none -> acme=3\n2 queues would change\n"
    )
    assert looked.stderr == "not in the file, unchanged: old (--prune removes their rules)\n"
    assert json.loads(command("show", "calls", "--json").stdout)["rules"]["running"] == 10

    applied = command("apply", str(file), "--json")
    assert json.loads(applied.stdout) == {
        "changed": [
            {
                "queue": "calls",
                "before": {"running": 10, "rate": "100/s", "burst": 3},
                "after": {"running": 50, "rate": "100/s"},
            },
            {"queue": "mail", "before": {}, "after": {"fair": True, "weights": {"acme": 3}}},
        ],
        "applied": True,
    }
    assert command("apply", str(file)).stdout == "nothing to change\n"
    assert "old\n  running         1 -> none" in command("apply", str(file), "--prune").stdout
    listed = json.loads(command("list", "--json").stdout)["queues"]
    assert [each["queue"] for each in listed] == ["calls", "mail"]

    file.write_text(f"{OF_A_FILE}\n[bad]\nrunning = 0\n")
    refused = command("apply", str(file), "--prune")
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"Error: {file}: queue bad: running must be a whole number")
    file.write_bytes(b"\xff")
    assert "not UTF-8 text" in command("apply", str(file)).stderr


@pytest.mark.parametrize("rule", [["--running", "1"], ["--running-per-key", "1"], ["--ordered"]])
def test_a_queue_in_forward_mode_accepts_no_rules_about_running_jobs(
    command: Command, monkeypatch: pytest.MonkeyPatch, rule: list[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAIN_FORWARD_QUEUES", "legacy,calls")
    result = command("set", "calls", *rule)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: queue calls: its jobs leave PostgreSQL when they are pushed")
    (tmp_path / "queues.toml").write_text("[legacy]\nrunning = 1")
    assert "Error: queue legacy: its jobs" in command("apply", str(tmp_path / "queues.toml")).stderr
    assert json.loads(command("list", "--json").stdout)["queues"] == []
    assert command("set", "calls", "--rate", "1/s", "--fair").exit_code == 0
