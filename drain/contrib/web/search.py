"""Search: ids and keys through indexes; parts of texts among the newest rows of each table.

A search is words and filters: `queue:mail state:dead args:42 "two words"`. All must match; quotes hold a text together.

Names, tags and arguments have no index, so a bounded number of rows is read by primary key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

import psycopg

from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.read.queries import TABLES
from drain.tables import lanes
from drain.tables.columns import DEFERRED, DUE, IS_BLOCKED, PARKED, QUEUED, RETRYING, RUNNING, STALLED
from drain.tables.heads import heads

# Newest rows per table searched for a part of a text.
LOOKED_AT = 10_000
# Maximum stored bytes of searched arguments: larger ones are in TOAST.
LARGEST_ARGUMENTS = 8192
MOST = 50
# Longest word or value of a filter: no name, tag or key is longer. A quoted one takes up to twice that.
LONGEST = 255
LONGEST_SEARCH = 4 * LONGEST
MOST_WORDS = 8

_LARGEST_ID = 2**63 - 1
_AT = {"staged": "staged_at", "inflight": "moved_at", "finished": "finished_at", "dead": "died_at"}
_MATCH = "id, job_name, queue, tag, key, {at}"
_ARGUMENTS = "(pg_column_size({0}) <= %(largest)s AND strpos({0}::text, %({1})s) > 0)"
# Where the word of a number may be.
_PARTS = {
    "name": "strpos(job_name, %(word{0})s) > 0",
    "queue": "queue = %(word{0})s",
    "tag": "strpos(tag, %(word{0})s) > 0",
    "key": "strpos(key, %(word{0})s) > 0",
    "unique key": "unique_key = %(word{0})s",
    "arguments": f"({_ARGUMENTS.format('job_args', 'in_json{0}')} OR {_ARGUMENTS.format('job_kwargs', 'in_json{0}')})",
}
# Filters, in SQL on `job`; `state` chooses tables instead.
_FILTERS = {
    "id": "id = %(id)s::bigint",
    "name": "strpos(job_name, %(name)s) > 0",
    "queue": "job.queue = %(queue)s",
    "tag": "strpos(tag, %(tag)s) > 0",
    "key": "key = %(key)s",
    "unique": "unique_key = %(unique)s",
    "args": f"({_ARGUMENTS.format('job_args', 'args')} OR {_ARGUMENTS.format('job_kwargs', 'args')})",
}
FILTERS = (*_FILTERS, "state")
# Tables of each state, and a condition.
STATES = {
    "waiting": ("staged", "true"),
    "scheduled": ("staged", f"(scheduled_at > now() AND NOT {IS_BLOCKED}) IS TRUE"),
    "blocked": ("staged", f"({IS_BLOCKED}) IS TRUE"),
    "queued": ("inflight", f"({QUEUED})"),
    "running": ("inflight", f"({RUNNING})"),
    "stalled": ("inflight", f"({STALLED})"),
    "retrying": ("inflight", f"({RETRYING})"),
    "deferred": ("inflight", f"({DEFERRED})"),
    "parked": ("inflight", f"({PARKED})"),
    "completed": ("finished", "superseded_by IS NULL"),
    "superseded": ("finished", "superseded_by IS NOT NULL"),
    "dead": ("dead", "true"),
    "cancelled": ("dead", "reason = 'cancelled'"),
}
_TOKEN = re.compile(r'(?:(\w+):)?(?:"((?:[^"\\]|\\.)*)"|(\S+))')
_NEWEST = """
SELECT {match}, CASE {words} END AS by FROM (
    SELECT * FROM {table} ORDER BY id DESC LIMIT %(looked_at)s) AS job
WHERE {conditions} ORDER BY id DESC LIMIT %(most)s
"""
_BY_ID = (
    "SELECT {match}, %(by)s::text FROM {table} AS job WHERE id = ANY (%(ids)s::bigint[]) AND {conditions}"
)
_BY_UNIQUE_KEY = """
SELECT {match}, 'unique key' FROM {table} AS job
WHERE unique_key = %(exact)s {waiting} AND {conditions} ORDER BY id DESC LIMIT %(most)s
"""
_STAGED_BY_KEY = f"""
SELECT {{match}}, 'key' FROM staged_jobs_ready AS job
WHERE {DUE} AND queue = ANY (%(queues)s::text[]) AND key = %(exact)s AND {{conditions}} LIMIT %(most)s
"""
_DEAD_BY_KEY = f"""{heads("dead_jobs", "key IS NOT NULL")}
SELECT found.* FROM heads, LATERAL (
    SELECT {{match}}, 'key' FROM dead_jobs AS job
    WHERE job.queue = heads.queue AND key = %(exact)s AND {{conditions}} LIMIT %(most)s) AS found
LIMIT %(most)s
"""
# Statements that find an exact key, by state, and their own parts.
_BY_KEYS: Mapping[str, Sequence[tuple[str, dict[str, Any]]]] = {
    "staged": ((_BY_UNIQUE_KEY, {"waiting": ""}), (_STAGED_BY_KEY, {})),
    "inflight": ((_BY_UNIQUE_KEY, {"waiting": "AND lease_expires_at IS NULL"}),),
    "dead": ((_DEAD_BY_KEY, {}),),
}
_BY_IDEMPOTENCY_KEY = """
SELECT job_id FROM idempotency_keys WHERE job_id IS NOT NULL AND idempotency_key = ANY (ARRAY (
    SELECT %(exact)s::text
    UNION ALL SELECT pg_catalog.concat(pg_catalog.quote_ident(rolname::text), ' ', %(exact)s::text)
    FROM pg_catalog.pg_roles))
"""


class Match(NamedTuple):
    """Found job; `by` is the part with the word, and `at` depends on its table."""

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
    """Return False for an empty, too long or unstorable word."""
    return 0 < len(word) <= LONGEST and not re.search("[\0\ud800-\udfff]", word)


class Query(NamedTuple):
    """Words, quoted texts and filters."""

    words: Sequence[str]
    filters: Mapping[str, str]


def parse(text: str) -> Query:
    """Split a search into words and filters.

    Raises:
        DrainError: A filter is given twice, its value is impossible, or there are too many words.
    """
    words, filters = list[str](), dict[str, str]()
    for match in _TOKEN.finditer(text):
        name, quoted, bare = match.groups()
        name = name and name.lower()
        value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare
        if name not in FILTERS or not value:
            words += filter(None, [value if name is None else match[0]])
        elif name in filters:
            raise DrainError(f"the filter {name}: is given twice")
        else:
            filters[name] = value.lower() if name == "state" else value
    if (state := filters.get("state")) and state not in STATES:
        raise DrainError(f"there is no state {state!r}: use {', '.join(STATES)}")
    if (job_id := filters.get("id")) and not (
        job_id.isascii() and job_id.isdecimal() and int(job_id) <= _LARGEST_ID
    ):
        raise DrainError(f"{job_id!r} is not the id of a job, a whole number")
    if len(words) > MOST_WORDS:
        raise DrainError(f"a search has at most {MOST_WORDS} words: quote a text that belongs together")
    return Query(words, filters)


def search(connection: Connection, query: Query, looked_at: int = LOOKED_AT) -> Result:
    """Find jobs, up to `MOST` per table.

    Args:
        connection: In autocommit mode, outside a transaction.
        query: Words and filters that `is_searchable` accepts.
    """
    filters = query.filters
    given = {
        **filters,
        **{f"word{number}": word for number, word in enumerate(query.words)},
        **{f"in_json{number}": _in_json(word) for number, word in enumerate(query.words)},
        "args": _in_json(filters.get("args", "")),
        "looked_at": looked_at,
        "most": MOST,
        "largest": LARGEST_ARGUMENTS,
    }
    states, condition = [*TABLES], "true"
    if "state" in filters:
        state, condition = STATES[filters["state"]]
        states = [state]
    # finished_jobs has no unique keys.
    states = [state for state in states if state != "finished" or "unique" not in filters]
    conditions = " AND ".join([condition, *(_FILTERS[name] for name in filters if name != "state")])
    found: dict[str, dict[int, Match]] = {state: {} for state in states}
    with _by_indexes(connection):
        for word, others in _exact_words(query):
            for state, match in _exact(connection, states, {**given, "exact": word}, conditions, others):
                found[state].setdefault(match.id, match)
    not_searched = []
    for state in states:
        try:
            with _by_indexes(connection):
                for match in _rows(connection, _newest(state, conditions, len(query.words)), given):
                    found[state].setdefault(match.id, match)
        except psycopg.errors.QueryCanceled:
            not_searched.append(state)
    matches = {
        state: sorted(by_id.values(), key=lambda match: -match.id)[:MOST] for state, by_id in found.items()
    }
    return Result(matches, not_searched)


def _exact_words(query: Query) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield what indexes can find, and the numbers of other words that must match."""
    numbers = range(len(query.words))
    if query.words:
        # A key may have blanks.
        yield " ".join(query.words), ()
    if len(query.words) > 1:
        yield from ((word, [*numbers[:at], *numbers[at + 1 :]]) for at, word in enumerate(query.words))
    for name in ("id", "key", "unique"):
        if name in query.filters:
            yield query.filters[name], numbers


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _exact(
    connection: Connection, states: Sequence[str], given: Mapping[str, Any], where: str, words: Sequence[int]
) -> Iterator[tuple[str, Match]]:
    """Find jobs through indexes, at any age."""
    word = given["exact"]
    ids = [int(word)] if word.isascii() and word.isdecimal() and int(word) <= _LARGEST_ID else []
    by_idempotency_key = [job_id for (job_id,) in connection.execute(_BY_IDEMPOTENCY_KEY, given)]
    keyed = lanes.find_lanes(connection, (lanes.URGENT_WITH_KEY, lanes.PATIENT_WITH_KEY))
    queues = sorted({lane.queue for lane in keyed})
    for state in states:
        statements: list[tuple[str, dict[str, Any]]] = [
            (_BY_ID, {"ids": found, "by": by})
            for found, by in ((ids, "id"), (by_idempotency_key, "idempotency key"))
            if found
        ]
        statements += _BY_KEYS.get(state, ())
        all_of = _all_of(state, where, words)
        for statement, more in statements:
            text = statement.format(
                match=_match(state), table=TABLES[state], conditions=all_of, waiting=more.get("waiting", "")
            )
            rows = _rows(connection, text, {**given, "queues": queues, **more})
            yield from ((state, match) for match in rows)


def _parts(state: str, number: int) -> dict[str, str]:
    missing = "unique key" if state == "finished" else ""
    return {part: each.format(number) for part, each in _PARTS.items() if part != missing}


def _all_of(state: str, conditions: str, words: Sequence[int]) -> str:
    each = [f"({' OR '.join(_parts(state, number).values())})" for number in words]
    return " AND ".join([*each, conditions])


def _newest(state: str, conditions: str, words: int) -> str:
    # Named after the column with the first word.
    parts = _parts(state, 0) if words else {"filter": "true"}
    return _NEWEST.format(
        match=_match(state),
        table=TABLES[state],
        words=" ".join(f"WHEN {condition} THEN '{part}'" for part, condition in parts.items()),
        conditions=_all_of(state, conditions, range(words)),
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
