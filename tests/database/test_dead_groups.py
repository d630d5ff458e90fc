"""Dead jobs in groups, by job name and by the place of the error in the application's own code; retries at a rate."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from drain.__main__ import main
from drain.read import dead_groups
from drain.tables import dead
from drain.tables.dead import Selection
from tests.database.test_query_plans import scans_of
from tests.dead_rows import bury, error
from tests.helpers import environment, ids_in, new_enqueuer, pushed_jobs, query

JOBS, MAIL = "/srv/app/shop/jobs.py:12:send", "/srv/app/shop/mail.py:7:deliver"
LIBRARY = "/srv/venv/lib/python3.11/site-packages/smtp/client.py:99:send"


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def summary(groups: dead_groups.Groups) -> list[tuple[str, str, int]]:
    return [(group.latest.job_name, group.latest.where, len(group.deaths)) for group in groups.groups]


def test_jobs_are_grouped_by_name_and_place_the_largest_group_first(
    database_url: str, connection: psycopg.Connection
) -> None:
    bury(database_url, "shop.jobs.send", error(JOBS, MAIL, LIBRARY, message="customer 1"))
    bury(database_url, "shop.jobs.send", error(JOBS, MAIL, LIBRARY, kind="OSError", message="customer 2"))
    bury(database_url, "shop.jobs.send", error(JOBS))
    bury(database_url, "shop.jobs.remind", error(JOBS, MAIL), count=3)
    bury(database_url, reason="expired", explanation="its expires_at had passed", count=4)
    # A person has cancelled these: their last errors are not why they are dead.
    bury(database_url, last_error=error(JOBS, MAIL), reason="cancelled", explanation="it was cancelled")

    groups = dead_groups.read_groups(connection)

    assert summary(groups) == [
        ("shop.jobs.send", "expired", 4),
        ("shop.jobs.remind", "app/shop/mail.py:7 in deliver", 3),
        ("shop.jobs.send", "app/shop/mail.py:7 in deliver", 2),
        *[group for group in summary(groups) if group[2] == 1],
    ]
    assert {group[1] for group in summary(groups) if group[2] == 1} == {
        "app/shop/jobs.py:12 in send",
        "cancelled",
    }
    assert (groups.looked_at, groups.has_more) == (11, False)
    two = groups.groups[2]
    assert groups.find(two.digest) is two
    assert groups.find("0" * 16) is None
    assert (two.latest.error, two.latest.message) == ("OSError", "customer 2")
    assert [job.message for job in dead_groups.listed(connection, two.ids)] == ["customer 2", "customer 1"]


def test_the_latest_of_a_group_is_the_one_that_died_last(
    database_url: str, connection: psycopg.Connection
) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=3)
    bury(database_url, last_error=error(JOBS, message="now"))
    bury(database_url, last_error=error(JOBS, message="then"), died_at=long_ago)
    (group,) = dead_groups.read_groups(connection).groups
    assert (group.latest.message, group.first_died_at) == ("now", long_ago)


def test_reaching_the_row_bound_is_reported(database_url: str, connection: psycopg.Connection) -> None:
    ids = bury(database_url, last_error=error(JOBS), count=5)
    groups = dead_groups.read_groups(connection, 3)
    assert (groups.looked_at, groups.has_more, groups.groups[0].ids) == (3, True, sorted(ids)[:1:-1])


def test_slices_leave_no_row_out(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_groups, "_SLICE", 2)
    ids = bury(database_url, last_error=error(JOBS), count=5)
    for most, expected in ((5, 5), (4, 4), (6, 5)):
        groups = dead_groups.read_groups(connection, most)
        assert groups.groups[0].ids == sorted(ids, reverse=True)[:expected]
        assert groups.has_more is (most < 5)


@pytest.mark.parametrize(
    "strange", [[], "text", 7, {"traceback": 7, "message": None}, {"type": {"a": 1}}, {}]
)
def test_an_error_in_an_unknown_format_is_accepted(
    database_url: str, connection: psycopg.Connection, strange: Any
) -> None:
    bury(database_url, last_error=strange)
    (group,) = dead_groups.read_groups(connection).groups
    assert group.latest.where == "failed"
    assert dead_groups.listed(connection, group.ids)[0].reason == "failed"


def test_a_very_long_traceback_keeps_its_ends(database_url: str, connection: psycopg.Connection) -> None:
    deep = [f"/srv/venv/lib/python3.11/site-packages/deep.py:{line}:again" for line in range(1000)]
    bury(database_url, last_error=error(JOBS, *deep))
    bury(database_url, last_error=error(*deep, MAIL))
    groups = dead_groups.read_groups(connection)
    assert {group.latest.where for group in groups.groups} == {
        "app/shop/jobs.py:12 in send",
        "app/shop/mail.py:7 in deliver",
    }


def test_only_the_newest_rows_are_read_of_very_many(
    database_url: str, connection: psycopg.Connection
) -> None:
    bury(database_url, last_error=error(JOBS, MAIL), count=20_000)
    read = scans_of(connection, dead_groups._NEWEST, {"before": dead_groups._BEHIND_ALL, "limit": 1000})
    assert read == {"dead_jobs_pkey": 1000}


def test_jobs_revived_at_a_rate_come_due_one_by_one(
    database_url: str, connection: psycopg.Connection
) -> None:
    ids = sorted(bury(database_url, last_error=error(JOBS), count=5))
    assert dead.revive(connection, Selection(tuple(ids)), per_second=0.5) == 5
    rows = query(
        database_url,
        "SELECT id, extract(epoch FROM scheduled_at - min(scheduled_at) OVER ())::integer, tableoid::regclass::text, "
        "history -> 0 ->> 'reason' FROM staged_jobs ORDER BY id",
    )
    expected = [(job_id, 2 * at, "staged_jobs_scheduled", "failed") for at, job_id in enumerate(ids)]
    assert [(row[0], row[1], row[2].rpartition(".")[2], row[3]) for row in rows] == expected
    assert ids_in(database_url, "dead_jobs") == []


def test_a_leader_delivers_only_the_first_revived_job_at_once(
    database_url: str, redis_url: str, connection: psycopg.Connection
) -> None:
    ids = sorted(bury(database_url, last_error=error(JOBS), count=3))
    dead.revive(connection, Selection(tuple(ids)), per_second=0.001)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    assert pushed_jobs(redis_url, "mail") == ids[:1]
    assert ids_in(database_url, "staged_jobs") == ids[1:]


def test_an_expiry_that_would_come_before_its_new_time_is_dropped(
    database_url: str, connection: psycopg.Connection
) -> None:
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    bury(database_url, last_error=error(JOBS), count=3, expires_at=in_an_hour)
    dead.revive(connection, Selection(queue="mail"), per_second=1 / 2400)
    rows = query(database_url, "SELECT expires_at FROM staged_jobs ORDER BY id")
    assert rows == [(in_an_hour,), (in_an_hour,), (None,)]


def drain(database_url: str, *words: str) -> Result:
    env = environment(database_url, "") | {"COLUMNS": "80"}
    return CliRunner().invoke(main, ["dead", *words], env=env)


def test_the_command_prints_a_line_for_each_group_and_its_json_feeds_a_retry(database_url: str) -> None:
    hostile = error("/srv/a b/\x1b[31mshop\u202e.py:12:send", message="\x1b]0;title\x07 and \u202e more")
    ids = bury(database_url, "shop.\u202ejobs\n.send", hostile, count=2)
    bury(database_url, reason="expired", explanation="its expires_at had passed " * 5)
    result = drain(database_url, "groups")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert not any(c in result.stdout for c in "\x1b\x07\u202e")
    found = json.loads(drain(database_url, "groups", "--json", "--limit", "1").stdout)
    assert (found["looked_at"], found["has_more"], len(found["groups"])) == (3, False, 1)
    assert found["groups"][0]["ids"] == sorted(ids, reverse=True)
    retried = drain(
        database_url, "retry", *map(str, found["groups"][0]["ids"]), "--per-second", "0.1", "--yes"
    )
    assert retried.stdout == "retry: 2 jobs\n"
    assert query(database_url, "SELECT max(scheduled_at) - min(scheduled_at) FROM staged_jobs") == [
        (timedelta(seconds=10),)
    ]


def test_the_command_reports_an_empty_and_a_truncated_list(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no dead jobs" in drain(database_url, "groups").stderr
    bury(database_url, count=3)
    read = dead_groups.read_groups
    monkeypatch.setattr(dead_groups, "read_groups", lambda connection: read(connection, 2))
    assert "only the 2 dead jobs staged last were read" in drain(database_url, "groups").stderr


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "1e9", "fast"])
def test_an_invalid_rate_is_a_usage_error(database_url: str, rate: str) -> None:
    assert drain(database_url, "retry", "1", "--per-second", rate).exit_code == 2
