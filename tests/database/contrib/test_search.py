"""Search for jobs by a word, in every table."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from drain import stage
from drain.contrib.web import search
from drain.jobs.staging import stage_many
from drain.read.queries import TABLES
from tests.database.test_query_plans import explained, nodes
from tests.dead_rows import bury
from tests.helpers import query

INFLIGHT = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery, tag)
VALUES (nextval('staged_jobs_id_seq'), 'shop.jobs.send', %s, '{}', 'mail', 0, now(), now(), 1, %s) RETURNING id
"""
FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token, tag)
VALUES (nextval('staged_jobs_id_seq'), 'shop.jobs.send', %s, '{}', 'mail', 0, now(), now(), now(), now(), now(), 1, 1,
    %s) RETURNING id
"""
MANY = 20_000


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def found(connection: psycopg.Connection, word: str, **options: Any) -> dict[str, list[tuple[int, str]]]:
    assert search.is_searchable(word)
    result = search.search(connection, search.parse(word), **options)
    assert result.not_searched == []
    return {
        state: [(match.id, match.by) for match in matches]
        for state, matches in result.matches.items()
        if matches
    }


def test_a_job_is_found_by_its_id_in_each_table(database_url: str, connection: psycopg.Connection) -> None:
    staged = stage(connection, "shop.jobs.send")
    ((inflight,),) = query(database_url, INFLIGHT, Jsonb([]), None)
    ((finished,),) = query(database_url, FINISHED, Jsonb([]), None)
    (dead,) = bury(database_url)
    ids = {"staged": staged, "inflight": inflight, "finished": finished, "dead": dead}
    assert list(ids) == list(TABLES)
    for state, job_id in ids.items():
        assert found(connection, str(job_id))[state] == [(job_id, "id")]
    assert found(connection, "9" * 30) == {}


@pytest.mark.parametrize(
    ("options", "word", "by"),
    [
        ({"tag": "import.customers"}, "customers", "tag"),
        ({"key": "acme"}, "acme", "key"),
        ({"key": "acme corp"}, "corp", "key"),
        ({"unique_key": "customer:7"}, "customer:7", "unique key"),
        ({"idempotency_key": "webhook:9f"}, "webhook:9f", "idempotency key"),
        ({"queue": "photos"}, "photos", "queue"),
        ({"kwargs": {"order": "A-17"}}, "A-17", "arguments"),
    ],
)
def test_a_staged_job_is_found_by_each_of_its_parts(
    connection: psycopg.Connection, options: dict[str, Any], word: str, by: str
) -> None:
    stage(connection, "shop.jobs.other")
    kwargs = options.pop("kwargs", {})
    job_id = stage(connection, "shop.jobs.send", kwargs=kwargs, **options)
    assert found(connection, word) == {"staged": [(job_id, by)]}


def test_a_part_of_a_name_a_tag_or_an_argument_is_found_in_each_table(
    database_url: str, connection: psycopg.Connection
) -> None:
    text = 'größe "10%_" \\'
    stage(connection, "shop.jobs.send", [text], tag="x")
    query(database_url, INFLIGHT, Jsonb([{"a": text}]), "x")
    query(database_url, FINISHED, Jsonb([text]), "x")
    bury(database_url, job_kwargs={"a": text}, tag="x")
    for word, by in ((text, "arguments"), ("jobs.sen", "name"), ("x", "tag")):
        assert {
            state: [each[1] for each in matches] for state, matches in found(connection, word).items()
        } == {state: [by] for state in TABLES}
    # Neither is a pattern.
    assert found(connection, "10%") != {}
    assert found(connection, "1_%") == {}


def test_a_key_is_found_in_rows_older_than_the_scanned_ones(
    database_url: str, connection: psycopg.Connection
) -> None:
    staged = stage(connection, "shop.jobs.send", key="acme", queue="a")
    unique = stage(connection, "shop.jobs.send", unique_key="u:1")
    (dead,) = bury(database_url, key="acme", queue="b")
    stage_many(connection, "shop.jobs.other", [[n] for n in range(5)])
    bury(database_url, "shop.jobs.other", count=5)
    assert found(connection, "acme", looked_at=2) == {"staged": [(staged, "key")], "dead": [(dead, "key")]}
    assert found(connection, "u:1", looked_at=2) == {"staged": [(unique, "unique key")]}
    assert found(connection, "send", looked_at=2) == {}


def test_one_page_of_jobs_is_found_newest_first(connection: psycopg.Connection) -> None:
    ids = stage_many(connection, "shop.jobs.send", [[n] for n in range(search.MOST + 5)], key="acme")
    for word in ("acme", "send"):
        assert [job_id for job_id, _ in found(connection, word)["staged"]] == sorted(ids)[
            : -search.MOST - 1 : -1
        ]


def test_arguments_that_are_stored_elsewhere_are_not_read(connection: psycopg.Connection) -> None:
    # Not to be compressed.
    (text,) = connection.execute(
        "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 2000) AS numbers (n)"
    ).fetchall()[0]
    stage(connection, "shop.jobs.send", [text])
    assert found(connection, text[:30]) == {}


@pytest.mark.parametrize("word", ["", "a\0b", "\ud800", "x" * 256])
def test_words_that_no_job_can_contain_are_not_searchable(word: str) -> None:
    assert not search.is_searchable(word)


def test_a_table_that_takes_too_long_is_named_and_the_others_are_searched(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dead,) = bury(database_url)
    newest = search._newest
    slow = "SELECT 1, '', '', '', '', now(), '' FROM pg_sleep(60) -- "
    monkeypatch.setattr(
        search,
        "_newest",
        lambda state, *given, **options: slow if state == "staged" else newest(state, *given, **options),
    )
    monkeypatch.setattr(search, "_exact", lambda *_, **_options: iter(()))
    result = search.search(connection, search.parse("send"))
    assert result.not_searched == ["staged"]
    assert [match.id for match in result.matches["dead"]] == [dead]


@pytest.mark.parametrize("when", ["analyzed", "analyzed while it was empty"])
def test_no_table_is_read_whole(database_url: str, connection: psycopg.Connection, when: str) -> None:
    if when != "analyzed":
        query(database_url, "VACUUM ANALYZE")
    # One statement each, as a thousand jobs would be staged: in turns of the ready partitions.
    stage_many(connection, "shop.jobs.send", [[n] for n in range(MANY)], key="acme")
    query(
        database_url,
        "INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "moved_at, claimed_at, finished_at, attempts, fencing_token) SELECT n, 'm.f', '[]', '{}', 'q', 0, now(), "
        "now(), now(), now(), now(), 1, 1 FROM generate_series(1, %s) AS numbers (n)",
        MANY,
    )
    bury(database_url, "m.f", count=MANY)
    if when == "analyzed":
        query(database_url, "ANALYZE")
    given = {
        "word0": "w",
        "in_json0": "w",
        "word1": "w",
        "in_json1": "w",
        "exact": "w",
        "looked_at": 100,
        "most": 50,
        "largest": 100,
        "queues": ["default"],
    }
    given |= dict.fromkeys(search.FILTERS, "w") | {"id": "7"}
    of_finished = [each for name, each in search._FILTERS.items() if name != "unique"]
    match = {state: search._match(state) for state in TABLES}
    waiting = "AND lease_expires_at IS NULL"
    statements = [
        *(search._newest(state, "true", 2) for state in TABLES),
        *(search._newest(state, " AND ".join(of_finished), 0) for state in TABLES),
        *(search._newest(table, each, 0) for table, each in search.STATES.values()),
        search._newest("dead", search._FILTERS["unique"], 1),
        search._BY_UNIQUE_KEY.format(
            match=match["staged"], table="staged_jobs", waiting="", conditions="true"
        ),
        search._BY_UNIQUE_KEY.format(
            match=match["inflight"], table="inflight_jobs", waiting=waiting, conditions="true"
        ),
        search._STAGED_BY_KEY.format(match=match["staged"], conditions=search._FILTERS["queue"]),
        search._DEAD_BY_KEY.format(match=match["dead"], conditions=search._FILTERS["queue"]),
        search._BY_IDEMPOTENCY_KEY,
    ]
    with search._by_indexes(connection):
        for statement in statements:
            (plan,) = explained(connection, statement, given, "ANALYZE, ")
            for node in nodes(plan["Plan"]):
                looked_at = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
                assert looked_at * node["Actual Loops"] <= 400, (statement, node)
