"""Search: ids and keys through indexes; parts of texts among the newest rows of each table.

Names, tags and arguments have no index and tables may be huge, so a bounded number of rows is
read by primary key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

import psycopg

from drain.database.postgres import Connection
from drain.read.queries import TABLES
from drain.tables import lanes
from drain.tables.columns import DUE
from drain.tables.heads import heads

# Newest rows per table searched for a part of a text.
LOOKED_AT = 10_000
# Maximum stored bytes of searched arguments: larger ones are in TOAST.
LARGEST_ARGUMENTS = 8192
# Maximum jobs found per table.
MOST = 50
# Longest search: no name, tag or key is longer.
LONGEST = 255

_LARGEST_ID = 2**63 - 1
_AT = {"staged": "staged_at", "inflight": "moved_at", "finished": "finished_at", "dead": "died_at"}
_MATCH = "id, job_name, queue, tag, key, {at}"
_ARGUMENTS = "(pg_column_size({0}) <= %(largest)s AND strpos({0}::text, %(in_json)s) > 0)"
_PARTS = {
    "name": "strpos(job_name, %(word)s) > 0",
    "queue": "queue = %(word)s",
    "tag": "strpos(tag, %(word)s) > 0",
    "key": "strpos(key, %(word)s) > 0",
    "unique key": "unique_key = %(word)s",
    "arguments": f"({_ARGUMENTS.format('job_args')} OR {_ARGUMENTS.format('job_kwargs')})",
}
_NEWEST = """
SELECT {match}, CASE {words} END AS by FROM (
    SELECT * FROM {table} ORDER BY id DESC LIMIT %(looked_at)s) AS job
WHERE {conditions} ORDER BY id DESC LIMIT %(most)s
"""
_BY_ID = "SELECT {match}, 'id' FROM {table} WHERE id = ANY (%(ids)s::bigint[])"
_BY_UNIQUE_KEY = """
SELECT {match}, 'unique key' FROM {table} WHERE unique_key = %(word)s {waiting} ORDER BY id DESC LIMIT %(most)s
"""
_STAGED_BY_KEY = f"""
SELECT {_MATCH.format(at="staged_at")}, 'key' FROM staged_jobs_ready
WHERE {DUE} AND queue = ANY (%(queues)s::text[]) AND key = %(word)s LIMIT %(most)s
"""
_DEAD_BY_KEY = f"""{heads("dead_jobs", "key IS NOT NULL")}
SELECT {_MATCH.format(at="died_at").replace("queue", "job.queue")}, 'key' FROM heads, LATERAL (
    SELECT * FROM dead_jobs WHERE dead_jobs.queue = heads.queue AND dead_jobs.key = %(word)s LIMIT %(most)s) AS job
LIMIT %(most)s
"""
_BY_IDEMPOTENCY_KEY = """
SELECT job_id FROM idempotency_keys WHERE job_id IS NOT NULL AND idempotency_key = ANY (ARRAY (
    SELECT %(word)s::text
    UNION ALL SELECT pg_catalog.concat(pg_catalog.quote_ident(rolname::text), ' ', %(word)s::text)
    FROM pg_catalog.pg_roles))
"""


class Match(NamedTuple):
    """Job that was found; `by` is the part with the word, and `at` depends on its table."""

    id: int
    job_name: str
    queue: str
    tag: str | None
    key: str | None
    at: datetime
    by: str


class Result(NamedTuple):
    """Jobs by state, highest id first; `not_searched` has states that timed out."""

    matches: Mapping[str, Sequence[Match]]
    not_searched: Sequence[str]


def is_searchable(word: str) -> bool:
    """Return True if a job can contain this word: neither empty, too long, nor unstorable."""
    return (
        bool(word) and len(word) <= LONGEST and not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in word)
    )


def search(connection: Connection, word: str, looked_at: int = LOOKED_AT) -> Result:
    """Find jobs by a word, up to `MOST` per table.

    Args:
        connection: In autocommit mode, outside a transaction.
        word: Accepted by `is_searchable`.
        looked_at: Maximum newest rows read per table.
    """
    given = {
        "word": word,
        "in_json": json.dumps(word, ensure_ascii=False)[1:-1],
        "looked_at": looked_at,
        "most": MOST,
        "largest": LARGEST_ARGUMENTS,
    }
    found: dict[str, dict[int, Match]] = {state: {} for state in TABLES}
    with _by_indexes(connection):
        for state, match in _exact(connection, word, given):
            found[state].setdefault(match.id, match)
    not_searched = []
    for state in TABLES:
        try:
            with _by_indexes(connection):
                for match in _rows(connection, _newest(state), given):
                    found[state].setdefault(match.id, match)
        except psycopg.errors.QueryCanceled:
            not_searched.append(state)
    matches = {
        state: sorted(by_id.values(), key=lambda match: -match.id)[:MOST] for state, by_id in found.items()
    }
    return Result(matches, not_searched)


def _exact(connection: Connection, word: str, given: Mapping[str, Any]) -> Iterator[tuple[str, Match]]:
    """Find jobs through indexes, at any age."""
    ids = [int(word)] if word.isascii() and word.isdecimal() and int(word) <= _LARGEST_ID else []
    yield from _by_ids(connection, ids, "id")
    by_idempotency_key = [job_id for (job_id,) in connection.execute(_BY_IDEMPOTENCY_KEY, given)]
    yield from _by_ids(connection, by_idempotency_key, "idempotency key")
    for state, waiting in (("staged", ""), ("inflight", "AND lease_expires_at IS NULL")):
        statement = _BY_UNIQUE_KEY.format(match=_match(state), table=TABLES[state], waiting=waiting)
        yield from ((state, match) for match in _rows(connection, statement, given))
    keyed = lanes.find_lanes(connection, (lanes.URGENT_WITH_KEY, lanes.PATIENT_WITH_KEY))
    queues = sorted({lane.queue for lane in keyed})
    yield from (("staged", match) for match in _rows(connection, _STAGED_BY_KEY, {**given, "queues": queues}))
    yield from (("dead", match) for match in _rows(connection, _DEAD_BY_KEY, given))


def _by_ids(connection: Connection, ids: Sequence[int], by: str) -> Iterator[tuple[str, Match]]:
    for state, table in TABLES.items() if ids else ():
        statement = _BY_ID.format(match=_match(state), table=table)
        yield from ((state, match._replace(by=by)) for match in _rows(connection, statement, {"ids": ids}))


def _newest(state: str) -> str:
    # finished_jobs has no unique keys.
    parts = {part: each for part, each in _PARTS.items() if state != "finished" or part != "unique key"}
    return _NEWEST.format(
        match=_match(state),
        table=TABLES[state],
        words=" ".join(f"WHEN {condition} THEN '{part}'" for part, condition in parts.items()),
        conditions=" OR ".join(parts.values()),
    )


def _match(state: str) -> str:
    return _MATCH.format(at=_AT[state])


def _rows(connection: Connection, statement: str, given: Mapping[str, Any]) -> list[Match]:
    rows = connection.execute(statement.encode(), given, binary=True).fetchall()
    return [Match._make(row) for row in rows]


# The timeout per statement bounds a search of all tables to 7.5 seconds.
_SETTINGS: LiteralString = """
SET TRANSACTION READ ONLY; SET LOCAL jit = off; SET LOCAL enable_seqscan = off; SET LOCAL statement_timeout = '1500ms'
"""


@contextmanager
def _by_indexes(connection: Connection) -> Iterator[None]:
    """Open a transaction whose plans never read a whole table."""
    with connection.transaction():
        connection.execute(_SETTINGS)
        yield
