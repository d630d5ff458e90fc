"""Filters of a search: each alone, pairs, states, and jobs of any age."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from drain import stage
from drain.contrib.web import search
from drain.jobs.staging import stage_many
from tests.dead_rows import bury
from tests.helpers import query

INFLIGHT = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery, tag,
    key, unique_key, claimed_at, claimed_by, lease_expires_at, next_run_at, failed_at)
SELECT nextval('staged_jobs_id_seq'), 'shop.jobs.send', '[42]', '{}', 'mail', 0, now(), now(), 1, 'checkout', 'acme',
    'flight-' || lastval(), claimed_at, 'host:1:abcdef', lease_expires_at, next_run_at, next_run_at
FROM (SELECT now() + %s::interval AS lease_expires_at, now() + %s::interval AS next_run_at, now() AS claimed_at) AS job
RETURNING id
"""
DEFERRED = "UPDATE inflight_jobs SET failed_at = NULL WHERE id = %s RETURNING id"
FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token, tag, key, superseded_by)
VALUES (nextval('staged_jobs_id_seq'), 'shop.jobs.send', '[42]', '{}', 'mail', 0, now(), now(), now(), now(), now(), 1,
    1, 'checkout', 'acme', %s) RETURNING id
"""
HOUR = timedelta(hours=1)


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def jobs(database_url: str, connection: psycopg.Connection) -> dict[str, int]:
    """A job in each state with the same name, queue, key, tag and argument, and some that share none of these."""
    given: dict[str, Any] = {"queue": "mail", "tag": "checkout", "key": "acme"}
    stage(connection, "shop.other", [7], queue="calls", tag="import", key="acme corp", unique_key="order-1")
    bury(database_url, "shop.other", job_args=[7], queue="calls", tag="import", key="acme corp")

    def one(statement: str, *values: Any) -> int:
        ((job_id,),) = query(database_url, statement, *values)
        return int(job_id)

    return {
        "waiting": stage(connection, "shop.jobs.send", [42], unique_key="order-7", **given),
        "scheduled": stage(connection, "shop.jobs.send", [42], run_in=HOUR, **given),
        "queued": one(INFLIGHT, None, None),
        "stalled": one(INFLIGHT, -HOUR, None),
        "running": one(INFLIGHT, HOUR, None),
        "retrying": one(INFLIGHT, None, HOUR),
        "deferred": one(DEFERRED, one(INFLIGHT, None, HOUR)),
        "completed": one(FINISHED, None),
        "superseded": one(FINISHED, 1),
        "dead": bury(database_url, job_args=[42], unique_key="order-8", **given)[0],
        "cancelled": bury(database_url, job_kwargs={"a": 42}, reason="cancelled", **given)[0],
    }


def found(connection: psycopg.Connection, text: str, **options: Any) -> list[int]:
    result = search.search(connection, search.parse(text), **options)
    assert result.not_searched == []
    ids = [match.id for matches in result.matches.values() for match in matches]
    assert len(set(ids)) == len(ids)
    return sorted(ids)


@pytest.mark.parametrize(
    "text",
    [
        *("name:jobs.send", "queue:mail", "tag:check", "key:acme", "args:42"),
        *("name:send queue:mail", "args:42 tag:checkout", 'key:acme name:"shop.jobs.send"'),
        *("queue:mail send", "acme queue:mail", "42 queue:mail", "key:acme checkout", "mail tag:checkout"),
    ],
)
def test_filters_find_the_jobs_that_match_in_each_table(
    connection: psycopg.Connection, jobs: dict[str, int], text: str
) -> None:
    assert found(connection, text) == sorted(jobs.values())


@pytest.mark.parametrize(
    "text",
    [
        *(
            "name:Send",
            "queue:mai",
            "tag:Check",
            "key:acm",
            "args:43",
            "unique:order",
            "unique:order-1 key:acme",
        ),
        *("queue:calls key:acme", "name:send queue:calls", "args:7 queue:mail", "import queue:mail"),
        *(
            "queue:mail nothing",
            'queue:mail "checkout acme"',
            "args:% queue:mail",
            "state:dead args:7 queue:mail",
        ),
    ],
)
def test_a_job_that_fails_one_filter_is_not_found(
    connection: psycopg.Connection, jobs: dict[str, int], text: str
) -> None:
    assert jobs
    assert found(connection, text) == []


def test_a_job_is_found_by_its_id_and_its_other_fields(
    connection: psycopg.Connection, jobs: dict[str, int]
) -> None:
    for job_id in jobs.values():
        for text in ("", "queue:mail", "tag:check", "key:acme", "name:jobs", "args:42", "send"):
            assert found(connection, f"id:{job_id} {text}") == [job_id], text
        for text in (
            "queue:calls",
            "tag:import",
            "key:acm",
            "name:other",
            "args:7",
            "unique:order-1",
            "nothing",
        ):
            assert found(connection, f"id:{job_id} {text}") == [], text
    assert found(connection, "id:999999") == []


def test_a_unique_key_finds_one_job(connection: psycopg.Connection, jobs: dict[str, int]) -> None:
    assert found(connection, "unique:order-7") == [jobs["waiting"]]
    assert found(connection, "unique:order-8") == [jobs["dead"]]
    assert found(connection, "unique:order-7 key:acme queue:mail") == [jobs["waiting"]]
    assert found(connection, f"unique:flight-{jobs['running']}") == [jobs["running"]]
    assert found(connection, "unique:order-7 queue:calls") == []


def test_each_word_must_match_but_in_any_part_and_order(
    connection: psycopg.Connection, jobs: dict[str, int]
) -> None:
    for text in ("acme send", "send acme", "42 checkout mail", '"jobs.send" "acme"'):
        assert found(connection, text) == sorted(jobs.values()), text
    for text in ('"acme send"', "acme nothing", "acme import mail", '"send acme" 42'):
        assert found(connection, text) == [], text
    assert found(connection, "acme corp import") == found(connection, 'key:"acme corp"')
    for name in ("waiting", "dead", "running"):
        assert found(connection, f"{jobs[name]} acme", looked_at=0) == [jobs[name]]
        assert found(connection, f"{jobs[name]} import", looked_at=0) == []
    # A key with a blank, at any age.
    assert len(found(connection, "acme corp", looked_at=0)) == 2


def test_quotes_hold_a_value_together(connection: psycopg.Connection, jobs: dict[str, int]) -> None:
    others = found(connection, 'key:"acme corp"')
    assert len(others) == 2
    assert found(connection, 'key:"acme corp" queue:calls state:waiting') == [min(others)]
    job_id = stage(connection, "shop.jobs.send", ['say "hi" \\', "größe"], key='a "b" \\', queue="words")
    assert found(connection, r'args:"say \"hi\" \\"') == [job_id]
    assert found(connection, r'key:"a \"b\" \\" args:größe') == [job_id]
    assert job_id not in jobs.values()


@pytest.mark.parametrize(
    ("state", "finds"),
    [
        ("waiting", ["waiting", "scheduled"]),
        ("scheduled", ["scheduled"]),
        # With its lease over, a job is queued.
        ("queued", ["queued", "stalled"]),
        ("running", ["running"]),
        ("retrying", ["retrying", "deferred"]),
        ("deferred", ["deferred"]),
        ("stalled", ["stalled"]),
        ("completed", ["completed"]),
        ("superseded", ["superseded"]),
        ("dead", ["dead", "cancelled"]),
        ("cancelled", ["cancelled"]),
    ],
)
def test_a_state_filter_finds_the_jobs_in_that_state(
    connection: psycopg.Connection, jobs: dict[str, int], state: str, finds: list[str]
) -> None:
    expected = sorted(jobs[each] for each in finds)
    for text in ("queue:mail", "key:acme", "tag:check name:send", "acme queue:mail"):
        assert found(connection, f"state:{state} {text}") == expected
    assert set(expected) <= set(found(connection, f"state:{state}"))
    for job_id in jobs.values():
        assert found(connection, f"state:{state} id:{job_id}") == [job_id] * (job_id in expected)
    assert found(connection, f"state:{state} queue:none") == []


def test_an_unknown_field_is_searched_as_a_word(connection: psycopg.Connection) -> None:
    job_id = stage(connection, "shop.jobs.send", tag="colour:red", queue="mail")
    stage(connection, "shop.jobs.send", tag="red", queue="mail")
    assert found(connection, "colour:red") == found(connection, "queue:mail colour:red") == [job_id]


def test_ids_and_keys_of_waiting_and_dead_jobs_are_found_at_any_age(
    database_url: str, connection: psycopg.Connection, jobs: dict[str, int]
) -> None:
    stage_many(connection, "shop.newer", [[n] for n in range(5)])
    bury(database_url, "shop.newer", count=5)
    for _ in range(3):
        query(database_url, FINISHED.replace("'acme'", "'newer'"), None)
    with_keys = sorted(jobs[each] for each in ("waiting", "dead", "cancelled"))
    in_flight = sorted(jobs[each] for each in ("retrying", "deferred"))
    assert found(connection, "key:acme", looked_at=2) == sorted(with_keys + in_flight)
    assert found(connection, "key:acme tag:check queue:mail", looked_at=2) == sorted(with_keys + in_flight)
    assert found(connection, "key:acme state:dead", looked_at=2) == sorted(with_keys[1:])
    assert found(connection, "key:acme state:waiting", looked_at=2) == with_keys[:1]
    assert found(connection, "key:acme queue:calls", looked_at=2) == []
    assert found(connection, "unique:order-7", looked_at=2) == [jobs["waiting"]]
    for job_id in jobs.values():
        assert found(connection, f"id:{job_id} queue:mail", looked_at=2) == [job_id]
    # A name has no index.
    assert found(connection, "name:jobs.send state:dead", looked_at=2) == []


def test_large_arguments_are_left_out_of_a_filter_too(connection: psycopg.Connection) -> None:
    (text,) = connection.execute(
        "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 2000) AS numbers (n)"
    ).fetchall()[0]
    small = stage(connection, "shop.jobs.send", kwargs={"text": text[:40]}, queue="mail")
    stage(connection, "shop.jobs.send", [text], queue="mail")
    assert found(connection, f"args:{text[:30]} queue:mail") == [small]


def test_a_match_names_the_index_that_found_it(connection: psycopg.Connection, jobs: dict[str, int]) -> None:
    def by(text: str) -> dict[int, str]:
        result = search.search(connection, search.parse(text))
        return {match.id: match.by for matches in result.matches.values() for match in matches}

    found_by = by("key:acme")
    assert found_by[jobs["waiting"]] == found_by[jobs["dead"]] == "key"
    assert found_by[jobs["running"]] == "filter"
    assert by(f"id:{jobs['queued']}") == {jobs["queued"]: "id"}
    assert by("unique:order-7") == {jobs["waiting"]: "unique key"}
    assert set(by("queue:mail checkout").values()) == {"tag"}


def test_filter_values_are_never_executed_as_sql(
    connection: psycopg.Connection, jobs: dict[str, int]
) -> None:
    for text in ("'; DROP TABLE staged_jobs; --", "%(id)s", "%s", "\\", "{0}"):
        for name in ("name", "queue", "tag", "key", "unique", "args"):
            assert found(connection, f"{name}:{text.replace(' ', '')}") == []
    assert found(connection, "queue:mail") == sorted(jobs.values())


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("state:dead {id}", "dead"),
        ("queue:mail {id}", "dead"),
        ("state:completed id:{id}", "completed"),
        ("id:{id} args:42", "waiting"),
        ("queue:mail order-7", "waiting"),
        ("key:acme state:cancelled", "cancelled"),
        ("key:acme queue:mail state:waiting send", "waiting"),
    ],
)
def test_filters_and_words_together_find_old_jobs(
    connection: psycopg.Connection, jobs: dict[str, int], text: str, state: str
) -> None:
    """None is among the newest rows that a search looks at."""
    assert found(connection, text.format(id=jobs[state]), looked_at=0) == [jobs[state]]


def test_jobs_of_a_key_are_not_hidden_by_those_of_another_queue(
    connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST", 3)
    for queue in ("aaa", "aaa", "aaa", "mail"):
        last = stage(connection, "shop.jobs.send", queue=queue, key="acme")
    assert found(connection, "key:acme queue:mail", looked_at=0) == [last]
