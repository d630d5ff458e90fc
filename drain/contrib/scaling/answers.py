"""`/scale/QUEUE` on the HTTP port of `drain run`: wanted workers as JSON.

The leader answers from its last measurement. Other processes, and unmeasured queues, read the tables on their own
connection, one request at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, unquote

import psycopg

from drain.config import QUEUE_NAME
from drain.contrib.scaling import load
from drain.contrib.scaling.load import Load
from drain.contrib.scaling.wanted import WITHIN_SECONDS, wanted
from drain.database import postgres, schema
from drain.errors import DrainError
from drain.formatting import seconds, visible

# Validity of a load: the leader's, and one read for a request.
_MEASURED_SECONDS = 6.0
_READ_SECONDS = 2.0
# Timeouts of a request and a statement; the port closes a connection after five seconds.
_WHOLE_SECONDS = 4.0
_STATEMENT_SECONDS = 3
_SHORTEST, _LONGEST = 1.0, 86_400.0
_MOST_AT_ONCE = 100_000
_MOST_QUEUES = 1000
_WITHIN_FORM = "within must be a time such as 30s, 10m or 1h, from 1s to 1d"

Reply = tuple[int, dict[str, Any]]


class _RefusedError(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Scale:
    """Answers of one process."""

    def __init__(self, database_url: str, clock: Callable[[], float] = monotonic) -> None:
        self._url = database_url
        self._clock = clock
        self._lock = Lock()
        # Each is valid until the given time.
        self._known: dict[str, tuple[Load, float]] = {}

    def measured(self, loads: Iterable[Load]) -> None:
        """Replace everything known by the leader's measurement."""
        until = self._clock() + _MEASURED_SECONDS
        self._known = {each.queue: (each, until) for each in loads}

    def answer(self, path: str, query: str) -> tuple[int, bytes]:
        """Return status and body; `path` is the queue, `query` follows the question mark."""
        try:
            queue = _queue(path)
            within, concurrency = _read_query(query)
            return 200, _body(wanted(self._load(queue), within, concurrency).as_json())
        except _RefusedError as refusal:
            return refusal.status, _body({"error": str(refusal)})

    def _load(self, queue: str) -> Load:
        found = self._remembered(queue)
        if found is None:
            # A hundred impatient clients cost the database as much as one.
            if not self._lock.acquire(timeout=_WHOLE_SECONDS):
                raise _RefusedError(503, "the database is slow: another request is waiting for it")
            try:
                found = self._remembered(queue) or self._read(queue)
            finally:
                self._lock.release()
        return found

    def _remembered(self, queue: str) -> Load | None:
        found, until = self._known.get(queue, (None, 0.0))
        return found if self._clock() < until else None

    def _read(self, queue: str) -> Load:
        try:
            with (
                closing(postgres.connect(self._url, "drain scale")) as connection,
                postgres.reachable(self._url),
                postgres.time_limit(connection, _WHOLE_SECONDS),
            ):
                postgres.limit_session(
                    connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_STATEMENT_SECONDS
                )
                schema.check_once(connection)
                found = load.read(connection, queue)
        except DrainError as error:
            raise _RefusedError(503, visible(str(error).partition("\n")[0])) from None
        except psycopg.Error as error:
            reason = error.diag.message_primary or str(error).partition("\n")[0]
            is_right = isinstance(error, psycopg.errors.InsufficientPrivilege)
            advice = "; run `drain roles --apply`" if is_right else ""
            raise _RefusedError(503, f"PostgreSQL refused: {visible(reason)}{advice}") from None
        if found is None:
            raise _RefusedError(
                404,
                f"queue {queue} has no rules and has never had a job: stage a job, or check the name",
            )
        if len(self._known) >= _MOST_QUEUES:
            self._known = {}
        self._known[queue] = (found, self._clock() + _READ_SECONDS)
        return found


def _body(value: dict[str, Any]) -> bytes:
    return f"{json.dumps(value)}\n".encode()


def _queue(path: str) -> str:
    queue = unquote(path)
    if not QUEUE_NAME.fullmatch(queue):
        raise _RefusedError(404, "name a queue: /scale/QUEUE?within=30s")
    return queue


def _read_query(query: str) -> tuple[float, int]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=10)
    except ValueError:
        raise _RefusedError(400, "malformed query: write it as ?within=30s&concurrency=4") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise _RefusedError(400, "within or concurrency is given twice")
    if unknown := given.keys() - {"within", "concurrency"}:
        shown = visible(min(unknown))[:50]
        raise _RefusedError(400, f"unknown parameter '{shown}': use within or concurrency")
    return _within(given.get("within")), _concurrency(given.get("concurrency"))


def _within(text: str | None) -> float:
    if text is None:
        return WITHIN_SECONDS
    try:
        value = seconds(text)
    except ValueError:
        value = 0.0
    if not _SHORTEST <= value <= _LONGEST:
        raise _RefusedError(400, f"{_WITHIN_FORM}, not '{visible(text)[:50]}'")
    return value


def _concurrency(text: str | None) -> int:
    if text is None:
        return 1
    if not re.fullmatch("[0-9]{1,6}", text) or not 1 <= int(text) <= _MOST_AT_ONCE:
        raise _RefusedError(
            400, f"concurrency must be a whole number from 1 to {_MOST_AT_ONCE}, not '{visible(text)[:50]}'"
        )
    return int(text)
