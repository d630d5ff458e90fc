"""One drains, the others stand by, whoever dies."""

import signal
from contextlib import ExitStack, closing

import psycopg
import pytest

from drain.database import postgres, schema
from drain.enqueuer import leader
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import Redelivery
from drain.wire import Producer
from tests.helpers import (
    NAMESPACE,
    drain_command,
    end,
    environment,
    ids_in,
    leading,
    new_enqueuer,
    pushed_jobs,
    query,
    stage_jobs,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("processes")

SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'drain run' AND datname = current_database()"
)
LEADERS = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)

DELIVERIES = "SELECT id, delivery, xmin::text FROM inflight_jobs ORDER BY id"


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    return environment(database_url, redis_url, DRAIN_BATCH_SIZE="50", DRAIN_DEPTH="0")


def test_there_is_one_leader_at_a_time(database_url: str) -> None:
    with (
        closing(postgres.connect(database_url, "one")) as one,
        closing(postgres.connect(database_url, "two")) as two,
    ):
        assert leader.try_to_lead(one) is not None
        assert leader.try_to_lead(two) is None
        one.close()
        wait_until(lambda: leader.try_to_lead(two) is not None)


def test_each_database_of_a_server_has_its_own_leader(database_url: str, empty_database_url: str) -> None:
    schema.install(empty_database_url)
    with (
        closing(postgres.connect(database_url, "one")) as one,
        closing(postgres.connect(empty_database_url, "other")) as other,
    ):
        assert leader.try_to_lead(one) is not None
        assert leader.try_to_lead(other) is not None


def test_a_standbys_first_batch_contains_no_row_drained_before(database_url: str, redis_url: str) -> None:
    drained = stage_jobs(database_url, 3)
    with closing(postgres.connect(database_url, "drain run")) as standby:
        with new_enqueuer(database_url, redis_url) as enqueuer:
            Redelivery(enqueuer).recover()
            assert leader.try_to_lead(standby) is None
            enqueuer.drain()
            new = stage_jobs(database_url, 2)
        state = wait_until(lambda: leader.try_to_lead(standby))
        assert state is not None
        with closing(Producer(redis_url, NAMESPACE)) as redis, Enqueuer(standby, redis, state) as successor:
            assert Redelivery(successor).recover() == 0
            assert successor.drain() == len(new)

    assert pushed_jobs(redis_url) == drained + new


def test_a_standby_continues_where_the_leader_ended(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    drained = stage_jobs(database_url, 3)
    with ExitStack() as stack:
        with new_enqueuer(database_url, redis_url) as enqueuer:
            Redelivery(enqueuer).recover()
            # Started any earlier, it could become the leader.
            standby = stack.enter_context(drain_command("run", "--metrics-port", "0", env=env))
            wait_until(lambda: standby.events("up"))
            assert not standby.events("leading")
            enqueuer.drain()
            new = stage_jobs(database_url, 2)
        wait_until(lambda: standby.events("leading"))
        wait_until(lambda: pushed_jobs(redis_url) == drained + new)
        assert not standby.events("down")
        assert not standby.events("redelivered")


def test_the_leader_uses_a_single_session_which_holds_the_lock(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with leading(env):
        stage_jobs(database_url)
        wait_until(lambda: pushed_jobs(redis_url))
        sessions = query(database_url, SESSIONS)

        assert len(sessions) == 1
        assert query(database_url, LEADERS) == sessions


def test_a_leader_whose_session_is_terminated_recovers_on_its_own(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with leading(env) as process:
        query(database_url, f"SELECT pg_terminate_backend(pid) FROM ({SESSIONS}) AS sessions")
        ids = stage_jobs(database_url, 3)
        wait_until(lambda: pushed_jobs(redis_url) == ids)
        # What is overdue is pushed before the first batch, and only that tells that both stores are there.
        wait_until(lambda: len(process.events("up")) == 2)

        assert len(process.events("down")) == 1


def end_sessions(database_url: str) -> None:
    query(database_url, f"SELECT pg_terminate_backend(pid, 5000) FROM ({SESSIONS}) AS sessions")


def test_a_leader_that_slept_through_its_sessions_end_becomes_standby(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with leading(env) as sleeper:
        sleeper.send_signal(signal.SIGSTOP)
        end_sessions(database_url)
        with leading(env):
            ids = stage_jobs(database_url, 3)
            wait_until(lambda: pushed_jobs(redis_url) == ids)
            sleeper.send_signal(signal.SIGCONT)
            wait_until(lambda: len(sleeper.events("up")) == 2)
            ids += stage_jobs(database_url, 3)
            wait_until(lambda: pushed_jobs(redis_url) == ids)
            # While the other one leads: a moment after its end the sleeper does.
            assert len(sleeper.events("leading")) == 1

        wait_until(lambda: len(sleeper.events("leading")) == 2)


def test_a_leader_suspended_in_a_batch_commits_nothing_of_it(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    ids = stage_jobs(database_url, 3)
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", [ids[1]])
        # Its first batch, before it says that it leads.
        with drain_command("run", "--metrics-port", "0", env=env) as sleeper:
            wait_until(lambda: query(database_url, f"{SESSIONS} AND wait_event_type = 'Lock'"))
            sleeper.send_signal(signal.SIGSTOP)
            assert query(database_url, f"{SESSIONS} AND xact_start IS NOT NULL")
            end_sessions(database_url)
            holder.rollback()
            with leading(env):
                wait_until(lambda: pushed_jobs(redis_url) == ids)
                deliveries = query(database_url, DELIVERIES)
                sleeper.send_signal(signal.SIGCONT)
                wait_until(lambda: sleeper.events("up"))
                assert query(database_url, DELIVERIES) == deliveries

    assert pushed_jobs(redis_url) == ids


def test_two_processes_drain_every_row_once(database_url: str, redis_url: str, env: dict[str, str]) -> None:
    ids: list[int] = []
    with (
        drain_command("run", "--metrics-port", "0", env=env),
        drain_command("run", "--metrics-port", "0", env=env),
    ):
        wait_until(lambda: len(query(database_url, SESSIONS)) == 2)
        for _ in range(30):
            ids += stage_jobs(database_url, 40)
        wait_until(lambda: len(pushed_jobs(redis_url)) >= len(ids))
        assert len(query(database_url, LEADERS)) == 1

    assert sorted(pushed_jobs(redis_url)) == ids
    assert ids_in(database_url, "inflight_jobs") == ids


def test_a_standby_takes_over_from_a_killed_leader(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    small = env | {"DRAIN_BATCH_SIZE": "5"}
    with leading(small) as first, drain_command("run", "--metrics-port", "0", env=small) as standby:
        wait_until(lambda: standby.events("up"))
        ids = stage_jobs(database_url, 2_000)
        wait_until(lambda: pushed_jobs(redis_url))
        assert end(first, signal.SIGKILL) == -signal.SIGKILL

        wait_until(lambda: standby.events("leading"))
        ids += stage_jobs(database_url, 10)
        wait_until(lambda: set(pushed_jobs(redis_url)) == set(ids))

    assert ids_in(database_url, "staged_jobs") == []
    assert ids_in(database_url, "inflight_jobs") == ids


def test_the_leader_records_its_name_and_start(database_url: str, env: dict[str, str]) -> None:
    with leading(env) as process:
        ((name, since, now),) = query(database_url, "SELECT leader, leader_since, now() FROM drain_state")

    assert f":{process.pid}:" in name
    assert since <= now


def test_another_sessions_long_transaction_does_not_stop_the_leader(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with psycopg.connect(database_url) as report:
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute("SELECT count(*) FROM staged_jobs")
        with leading(env):
            ids = stage_jobs(database_url, 100)
            wait_until(lambda: pushed_jobs(redis_url) == ids)
