"""Very many rules and pauses: what the leader does follows the queues that have jobs, and what has changed."""

import psycopg
import pytest

from drain.admission import admission, awake
from drain.database import postgres
from drain.read import queues, system
from drain.read.queue import Queue
from drain.tables import pauses, rules
from drain.tables.followed import FollowedTable
from tests.helpers import new_enqueuer, query, stage_jobs, wait_until

MANY = 300


def write_rules(database_url: str, number: int = MANY) -> None:
    query(
        database_url,
        "INSERT INTO queues (queue, running) SELECT 'ruled-' || n, 1 FROM generate_series(1, %s) AS n",
        number,
    )


def inflight(database_url: str) -> list[str]:
    return [queue for (queue,) in query(database_url, "SELECT queue FROM inflight_jobs ORDER BY queue")]


def test_the_cost_of_a_batch_depends_on_active_queues_not_rules(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rules(database_url)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
        executed = 0
        execute = enqueuer.connection.execute

        def count(*arguments: object, **options: object) -> object:
            nonlocal executed
            executed += 1
            return execute(*arguments, **options)  # type: ignore[call-overload]

        monkeypatch.setattr(enqueuer.connection, "execute", count)
        stage_jobs(database_url, queue="free")
        stage_jobs(database_url, 2, queue="ruled-7")
        enqueuer.admission.expect_arrivals()
        enqueuer.drain()
        assert inflight(database_url) == ["free", "ruled-7"]
        assert executed < MANY / 2
        assert enqueuer.admission.awake == {"ruled-7"}


def test_queues_with_rules_take_turns_beyond_the_awake_limit(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awake, "MOST_AWAKE", 10)
    monkeypatch.setattr(awake, "_TURN_SECONDS", 0)
    for module in (awake, admission):
        monkeypatch.setattr(module, "MOST_AT_ONCE", 3)
    write_rules(database_url, 40)
    for number in range(1, 41):
        stage_jobs(database_url, 2, queue=f"ruled-{number}")
    with new_enqueuer(database_url, redis_url) as enqueuer:

        def has_all() -> bool:
            enqueuer.run_once()
            assert len(enqueuer.admission.awake) <= 10
            return len(inflight(database_url)) >= 40

        wait_until(has_all)
        for _ in range(40):
            enqueuer.run_once()
        enqueuer.flush()
    assert inflight(database_url) == sorted(f"ruled-{number}" for number in range(1, 41))


def test_a_sleeping_queue_wakes_with_its_next_job_and_keeps_its_limit(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drain.admission.keyed_queue._AWAKE_SECONDS", 0)
    write_rules(database_url, 1)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        for _ in range(2):
            stage_jobs(database_url, queue="ruled-1")
            enqueuer.drain()
        wait_until(lambda: enqueuer.look() or enqueuer.admission.awake)
        assert inflight(database_url) == ["ruled-1"]
        query(database_url, "DELETE FROM inflight_jobs")
        wait_until(lambda: enqueuer.drain() or inflight(database_url))
        wait_until(lambda: enqueuer.look() or not enqueuer.admission.awake)
        stage_jobs(database_url, priority=5, queue="ruled-1")
        query(database_url, "DELETE FROM inflight_jobs")
        wait_until(lambda: enqueuer.drain() or inflight(database_url))


def test_a_poll_reads_only_the_changed_rows(database_url: str) -> None:
    write_rules(database_url)
    read: list[str] = []

    def note(row: tuple[str, int]) -> tuple[str, int]:
        read.append(row[0])
        return row

    table = FollowedTable("queues", "queue, running", note)
    with postgres.connect(database_url, "a test") as connection:
        assert len(table.look(connection)) == len(read) == MANY
        read.clear()
        assert not table.look(connection)
        # By hand: the time of the change stays as it is.
        query(database_url, "UPDATE queues SET running = 2 WHERE queue = 'ruled-7'")
        query(database_url, "INSERT INTO queues (queue) VALUES ('new')")
        assert table.look(connection) == {"ruled-7": ("ruled-7", 1), "new": None}
        assert sorted(read) == ["new", "ruled-7"]
        query(database_url, "DELETE FROM queues WHERE queue = 'ruled-9'")
        query(database_url, "INSERT INTO queues (queue) VALUES ('newer')")
        assert table.look(connection) == {"ruled-9": ("ruled-9", 1), "newer": None}
        assert table.rows.keys() == {queue for (queue,) in query(database_url, "SELECT queue FROM queues")}


def test_a_change_that_commits_out_of_order_is_found(database_url: str) -> None:
    table = rules.followed()
    with (
        postgres.connect(database_url, "a test") as connection,
        psycopg.connect(database_url) as slow,
    ):
        query(database_url, "INSERT INTO queues (queue, running) VALUES ('slow', 1), ('fast', 1)")
        assert len(table.look(connection)) == 2
        slow.execute("UPDATE queues SET running = 2 WHERE queue = 'slow'")
        query(database_url, "UPDATE queues SET running = 2 WHERE queue = 'fast'")
        assert table.look(connection).keys() == {"fast"}
        slow.commit()
        assert table.look(connection).keys() == {"slow"}


def test_a_pause_expires_without_a_row_change(database_url: str) -> None:
    with postgres.connect(database_url, "a test") as connection:
        followed = pauses.FollowedPauses(connection)
        query(database_url, "INSERT INTO queue_pauses (queue) VALUES ('long')")
        query(
            database_url,
            "INSERT INTO queue_pauses (queue, until) VALUES ('short', now() + interval '0.5 s')",
        )
        before = followed.look()
        assert before.queue("long")
        wait_until(lambda: not followed.look().queue("short"))
        assert followed.look() is followed.look()
        assert followed.look().queue("long")


def test_the_status_shows_some_of_very_many_rules_and_all_held_queues(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MOST_QUEUES", 5)
    write_rules(database_url)
    query(database_url, "UPDATE queues SET error = 'wrong' WHERE queue = 'ruled-99'")
    query(database_url, "INSERT INTO queue_pauses (queue) SELECT queue FROM queues")
    stage_jobs(database_url, queue="ruled-50")
    with postgres.connect(database_url, "a test") as connection:
        shown = system.with_others(system.read(connection).queues)
    assert len(shown) == 6
    assert shown["ruled-99"].held == "wrong"
    assert shown["ruled-50"].rules == rules.RulesRow("ruled-50", running=1)
    assert shown[system.OTHERS] == Queue()
