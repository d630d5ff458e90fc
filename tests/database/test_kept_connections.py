"""Connections that a process keeps from one job to the next: nothing of one job is left for another."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy

from drain.workers.context import connection_cache
from drain.workers.context.session import session_of
from tests.helpers import query, wait_until

PID = sqlalchemy.text("SELECT pg_backend_pid()")


def sessions_of_jobs(database_url: str) -> int:
    ((count,),) = query(
        database_url,
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'drain job'",
    )
    return int(count)


def test_a_session_used_after_its_block_does_not_join_another_jobs_transaction(
    database_url: str,
) -> None:
    """As in two `async def` jobs, of which one goes on while the other is in its transaction."""
    with session_of(database_url) as first:
        its_own = first.scalar(PID)
    with session_of(database_url) as second:
        assert second.scalar(PID) == its_own
        assert first.scalar(PID) != its_own
        first.close()


def test_a_jobs_event_listeners_do_not_reach_the_next_job(database_url: str) -> None:
    heard: list[str] = []
    with session_of(database_url) as session:
        sqlalchemy.event.listen(
            session.connection(), "before_cursor_execute", lambda *each: heard.append(each[2])
        )
        session.scalar(PID)
    with session_of(database_url) as session:
        session.scalar(sqlalchemy.text("SELECT 'the next job'"))
    assert heard == [str(PID)]
    wait_until(lambda: sessions_of_jobs(database_url) == 1)


def leave_a_statement_unanswered(database_url: str) -> None:
    with connection_cache.of_session(database_url) as connection:
        connection.execute(PID)
        connection_cache.driver_of(connection).pgconn.send_query(b"SELECT 1")
        raise KeyError


def test_an_error_during_a_statement_propagates_and_ends_the_session(
    database_url: str,
) -> None:
    with pytest.raises(KeyError):
        leave_a_statement_unanswered(database_url)
    assert connection_cache._kept_for_sessions[os.getpid(), database_url] == []
    wait_until(lambda: sessions_of_jobs(database_url) == 0)


def test_options_set_by_a_job_do_not_reach_the_next_one(database_url: str) -> None:
    with session_of(database_url) as session:
        session.connection().execution_options(logging_token="the first job")
    with session_of(database_url) as session:
        assert dict(session.connection().get_execution_options()) == {}


def test_a_connection_that_a_job_closes_after_its_block_is_replaced(database_url: str) -> None:
    with session_of(database_url) as session:
        connection = session.connection()
    connection.close()
    with session_of(database_url) as session:
        assert session.scalar(sqlalchemy.text("SELECT 1")) == 1


@pytest.mark.parametrize("way", [session_of, connection_cache.bare], ids=["sqlalchemy", "psycopg"])
def test_only_one_of_many_open_connections_is_kept(
    database_url: str, way: Callable[[str], AbstractContextManager[Any]]
) -> None:
    with way(database_url), way(database_url), way(database_url):
        pass
    wait_until(lambda: sessions_of_jobs(database_url) == 1)
