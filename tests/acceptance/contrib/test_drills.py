"""`drain drill`: every drill with real processes, and its verdict put to the proof."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))

from drills import (  # noqa: E402
    catalogue,
    flush_redis,
    invariants,
    kill_enqueuer,
    kill_worker,
    late_commit,
    lease_race,
    restart_postgres,
    scenario,
    shop,
    zombie_leader,
)
from drills.report import Report, Result  # noqa: E402
from drills.shop import Order  # noqa: E402
from drills.verdict import Evidence, Outcome, Verdict  # noqa: E402

from drain.__main__ import main  # noqa: E402
from drain.database import postgres  # noqa: E402
from drain.database.postgres import Connection  # noqa: E402
from tests.helpers import PATIENCE_SECONDS, drain_command, environment, wait_until  # noqa: E402
from tests.marked import marked, on_linux  # noqa: E402

# One minute at load 8.
ALL_SECONDS = 300
A, B = "here:1", "here:2"
FINISH = """
WITH staged AS (DELETE FROM staged_jobs WHERE id = %(id)s RETURNING *)
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at,
    moved_at, claimed_at, finished_at, finished_by, attempts, fencing_token)
SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at,
    clock_timestamp(), clock_timestamp(), clock_timestamp(), %(worker)s, %(token)s, %(token)s FROM staged
"""
EFFECT = "INSERT INTO effects (order_id, job_id, fencing_token) VALUES (%s, %s, %s)"
REFUSE = "INSERT INTO stale_finishes (id, fencing_token, claimed_by, outcome) VALUES (%s, %s, %s, 'finished')"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def lines(temporary_directory: str) -> Lines:
    """What `drain drill --all --json` prints, all of it in one process: seven times half a dozen seconds."""
    env = environment("", "", TMPDIR=temporary_directory)
    with drain_command("drill", "--all", "--json", env=env) as command:
        code = command.wait(ALL_SECONDS)
        assert code == 0
        return [json.loads(line) for line in command.output.splitlines()]


class Books:
    """A database with orders, the enqueuer's and the worker's part done by hand."""

    def __init__(self, database_url: str) -> None:
        self.connection = postgres.connect(database_url, "test")
        shop.create(self.connection)

    def place(self) -> Order:
        with self.connection.transaction():
            (order,) = shop.place(self.connection)
        return order

    def settle(self, order: Order, *, token: int = 1, worker: str = A, effects: int = 1) -> None:
        self.connection.execute(FINISH, {"id": order.job_id, "token": token, "worker": worker})
        for _ in range(effects):
            self.connection.execute(EFFECT, (order.id, order.job_id, token))

    def rolled_back(self) -> str:
        """A transaction that has been."""
        with self.connection.transaction(force_rollback=True):
            ((number,),) = self.connection.execute("SELECT pg_current_xact_id()::text")
        return str(number)


@pytest.fixture
def tables(database_url: str) -> Iterator[Books]:
    made = Books(database_url)
    with closing(made.connection):
        yield made


def broken(evidence: list[Evidence]) -> list[str]:
    return [each.claim for each in evidence if not each.holds]


@pytest.mark.parametrize("name", catalogue.DRILLS)
def test_each_drill_happens_and_is_survived(lines: Lines, name: str) -> None:
    (verdict,) = [line for line in lines if line["drill"] == name and "verdict" in line]
    assert verdict["verdict"] == "survived"
    assert verdict["passed"]
    assert len(verdict["race"]) >= 2
    assert len(verdict["survival"]) >= 4
    assert all(each["holds"] and each["found"] for each in verdict["race"] + verdict["survival"])


@pytest.mark.parametrize("name", catalogue.DRILLS)
def test_each_drill_reports_events_in_order_and_the_verdict_last(lines: Lines, name: str) -> None:
    *events, verdict = [line for line in lines if line["drill"] == name]
    times = [event["at"] for event in events]
    assert times == sorted(times)
    assert times[-1] <= verdict["seconds"] + 0.1
    assert {event["event"] for event in events} > {"started", "committed"}


def test_the_lease_race_uses_both_tokens_and_sees_a_refusal(lines: Lines) -> None:
    events = [line for line in lines if line["drill"] == "lease-race" and "event" in line]
    tokens = [event["token"] for event in events if event["event"] == "lease_acquired"]
    (refused,) = [event for event in events if event["event"] == "stale_finish_refused"]
    assert tokens == [1, 2]
    assert (refused["stale_token"], refused["current_token"]) == (1, 2)


def test_an_unknown_name_is_answered_with_the_available_drills() -> None:
    for words in (["drill", "kill-everything"], ["drill"]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2
        assert all(name in result.output for name in catalogue.DRILLS)


def test_the_help_has_a_line_for_each_drill() -> None:
    output = CliRunner().invoke(main, ["drill", "--help"]).output
    for name, drill in catalogue.DRILLS.items():
        assert f"  {name:18}{drill.SUMMARY}\n" in output


@on_linux
def test_ctrl_c_ends_every_process(temporary_directory: str) -> None:
    name, value = "DRILL_TEST", uuid4().hex
    env = environment("", "", TMPDIR=temporary_directory, **{name: value})
    with drain_command("drill", "flush-redis", env=env) as command:
        wait_until(lambda: '"event": "flushed"' in command.output, PATIENCE_SECONDS)
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE_SECONDS) == 130
        assert command.output.endswith("Error: interrupted; all processes have ended\n")
        assert marked(f"{name}={value}") == []


def test_an_effect_that_vanishes_makes_the_whole_drill_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = invariants.check

    def check_after_sabotage(connection: Connection, confirmed: list[int] | tuple[()] = ()) -> list[Evidence]:
        connection.execute("DELETE FROM effects WHERE order_id = 1")
        return check(connection, confirmed)

    monkeypatch.setattr(invariants, "check", check_after_sabotage)
    assert catalogue.main(["late-commit"], as_json=False) == 1
    output = capsys.readouterr().out
    assert "NO   effects has the row of each job exactly once: 1 once, 0 twice, 1 never" in output
    assert "late-commit: not survived" in output


def test_a_race_that_never_happens_is_reported_as_not_proven(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenario, "_PATIENCE_SECONDS", 0.0)
    assert catalogue.main(["lease-race", "late-commit"], as_json=True) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    verdicts = [line for line in told if "verdict" in line]
    assert [line["verdict"] for line in verdicts] == ["not proven", "not proven"]
    assert "within 0 s" in verdicts[0]["race"][0]["found"]
    assert {line["process"] for line in told if line.get("event") == "log"} >= {"enqueuer", "worker A"}


def test_the_table_has_a_row_for_each_drill(capsys: pytest.CaptureFixture[str]) -> None:
    proof = Evidence("the token is 2", "token 2", holds=True)
    doubt = Evidence("the token is 2", "token 1", holds=False)
    report = Report(as_json=False)
    report.summarise(
        [
            Result("a", "", Verdict("it broke", [proof], [proof]), 1.25),
            Result("b", "", Verdict("it did not", [doubt], [proof]), 2),
            Result("c", "", Verdict("it was lost", [proof], [doubt]), 3),
        ]
    )
    heading, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading == ["drill", "what", "happened", "evidence", "verdict", "took"]
    assert rows[0] == ["a", "it", "broke", "token", "2", "survived", "1.2s"]
    assert rows[1][-3:] == ["not", "proven", "2s"]
    assert rows[2][-3:] == ["not", "survived", "3s"]


def test_without_evidence_no_verdict_is_a_success() -> None:
    proof = Evidence("", "", holds=True)
    assert Verdict("", [], [proof]).outcome is Outcome.NOT_PROVEN
    assert Verdict("", [proof], []).outcome is Outcome.NOT_SURVIVED
    assert Verdict("", [proof], [proof]).passed


def test_the_books_agree_when_each_order_is_settled_once(tables: Books) -> None:
    order = tables.place()
    tables.settle(order)
    assert broken(invariants.check(tables.connection, [order.id])) == []


def test_empty_books_do_not_agree(tables: Books) -> None:
    assert len(broken(invariants.check(tables.connection))) == 2


@pytest.mark.parametrize("effects", [0, 2])
def test_the_books_notice_a_missing_effect_and_a_duplicate(tables: Books, effects: int) -> None:
    tables.settle(tables.place(), effects=effects)
    assert broken(invariants.check(tables.connection)) == ["effects has the row of each job exactly once"]


def test_the_books_notice_a_missing_job(tables: Books) -> None:
    tables.settle(tables.place())
    lost = tables.place()
    tables.connection.execute("DELETE FROM staged_jobs")
    tables.connection.execute(EFFECT, (lost.id, lost.job_id, 1))
    assert broken(invariants.check(tables.connection)) == [
        "finished_jobs has the job of every committed order"
    ]


def test_the_books_notice_a_commit_known_only_to_the_application(tables: Books) -> None:
    tables.settle(tables.place())
    assert broken(invariants.check(tables.connection, [999])) == [
        "finished_jobs has the job of every committed order"
    ]


def test_the_books_notice_runs_without_a_commit_and_before_it(tables: Books) -> None:
    tables.settle(tables.place())
    tables.connection.execute(EFFECT, (999, 999, 1))
    tables.connection.execute("UPDATE finished_jobs SET claimed_at = %s", (LONG_AGO,))
    (early,) = [each for each in invariants.check(tables.connection) if not each.holds]
    assert early.found == "1 without, 1 before"


def test_a_lease_race_is_proven_by_the_second_token_and_the_refusal_of_the_first(tables: Books) -> None:
    order = tables.place()
    race = lease_race.Race(order.job_id, A, tables.rolled_back())
    tables.settle(order, token=2, worker=B)
    tables.connection.execute(REFUSE, (order.job_id, 1, A))
    assert lease_race.judge(tables.connection, race).outcome is Outcome.SURVIVED

    tables.connection.execute(EFFECT, (order.id, order.job_id, 1))
    assert lease_race.judge(tables.connection, race).outcome is Outcome.NOT_SURVIVED

    tables.connection.execute("DELETE FROM stale_finishes")
    assert lease_race.judge(tables.connection, race).outcome is Outcome.NOT_PROVEN


CALM: dict[ModuleType, Callable[[Books, Order], object]] = {
    lease_race: lambda books, order: lease_race.Race(order.job_id, A, books.rolled_back()),
    kill_worker: lambda books, order: kill_worker.Death(order.job_id, A, books.rolled_back(), LONG_AGO),
    kill_enqueuer: lambda _books, _order: kill_enqueuer.Death(A, LONG_AGO),
    flush_redis: lambda _books, _order: flush_redis.Flush(0, 1),
    restart_postgres: lambda _books, order: restart_postgres.Crash(datetime.now(UTC), order.job_id),
    zombie_leader: lambda books, order: zombie_leader.Leadership(
        A,
        B,
        datetime.now(UTC),
        zombie_leader.Batch(books.rolled_back(), [order.job_id]),
        datetime.now(UTC),
    ),
    late_commit: lambda _books, order: late_commit.Overtaking(order.id, order.job_id, order.job_id + 1),
}


@pytest.mark.parametrize("drill", CALM, ids=lambda drill: drill.__name__)
def test_no_drill_passes_when_nothing_went_wrong(tables: Books, drill: ModuleType) -> None:
    order = tables.place()
    tables.settle(order)
    verdict = drill.judge(tables.connection, CALM[drill](tables, order))
    assert verdict.outcome is Outcome.NOT_PROVEN


def test_every_drill_has_a_calm_case() -> None:
    assert set(CALM) == set(catalogue.DRILLS.values())
