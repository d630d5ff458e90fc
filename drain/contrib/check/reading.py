"""Bounded reads: each store is queried on its own thread, abandoned if it hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from time import monotonic
from typing import Generic, TypeVar

import psycopg

from drain.config import Settings
from drain.contrib.check.thresholds import Finding, Level, Thresholds, Verdict, judge
from drain.database import postgres, schema
from drain.errors import ConfigError, DrainError, SchemaError, UnavailableError
from drain.read import capacity, queries, system, unfinished_flows
from drain.read.snapshots import snapshot
from drain.read.system import System
from drain.read.unfinished_flows import UnfinishedFlows
from drain.wire import Producer
from drain.wire.workers import Worker

T = TypeVar("T")
# PostgreSQL's share of the time.
_OF_POSTGRES = 0.7


class _Answer(Generic[T]):
    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="check", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._ask())
        except BaseException as error:  # noqa: BLE001
            self._error = error

    def within(self, seconds: float) -> T:
        self._thread.join(max(0.0, seconds))
        if self._error is not None:
            raise self._error
        if not self._value:
            raise TimeoutError
        return self._value[0]


def look(settings: Settings, thresholds: Thresholds, seconds: float) -> Verdict:
    """Check both stores within `seconds`; without a Redis URL, workers are not judged."""
    ends = monotonic() + seconds
    try:
        found, flows, overdue_seconds = _Answer(
            lambda: _ask_postgres(settings, _OF_POSTGRES * seconds)
        ).within(_OF_POSTGRES * seconds)
    except TimeoutError:
        text = f"PostgreSQL did not answer within {_OF_POSTGRES * seconds:g} s"
        return Verdict([Finding("postgres", Level.CRITICAL, text)])
    except (DrainError, psycopg.Error) as error:
        return Verdict([_finding_of(error)])
    more: list[Finding] = []
    if settings.redis_url:
        queues = list(found.queues)
        try:
            crews = _Answer(lambda: _ask_redis(settings, queues)).within(ends - monotonic())
        except TimeoutError:
            more.append(Finding("redis", Level.CRITICAL, "Redis did not answer in time"))
        except DrainError as error:
            more.append(Finding("redis", Level.CRITICAL, str(error)))
        else:
            capacity.add_workers(found.queues, crews)
    verdict = judge(found, thresholds, flows.states["failed"], overdue_seconds)
    return replace(verdict, findings=[*more, *verdict.findings])


def _finding_of(error: DrainError | psycopg.Error) -> Finding:
    if isinstance(error, SchemaError):
        return Finding("schema", Level.CRITICAL, str(error))
    if isinstance(error, UnavailableError):
        return Finding("postgres", Level.CRITICAL, str(error))
    if isinstance(error, ConfigError):
        return Finding("settings", Level.UNKNOWN, str(error))
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        text = f"{error.diag.message_primary}; `drain roles inspection` prints the required rights"
        return Finding("rights", Level.UNKNOWN, text)
    return Finding("postgres", Level.UNKNOWN, f"PostgreSQL refused: {str(error).partition(chr(10))[0]}")


def _ask_postgres(settings: Settings, seconds: float) -> tuple[System, UnfinishedFlows, float]:
    connection = postgres.connect(settings.database_url, "drain check")
    with (
        closing(connection),
        postgres.reachable(settings.database_url),
        postgres.time_limit(connection, seconds),
    ):
        bound = max(1, int(seconds))
        postgres.limit_session(connection, statement_seconds=bound, lock_seconds=bound)
        schema.check(connection)
        found = system.read(queries.with_lenient_values(connection))
        with snapshot(connection):
            return found, unfinished_flows.count(connection), unfinished_flows.overdue_seconds(connection)


def _ask_redis(settings: Settings, queues: list[str]) -> dict[str, list[Worker]]:
    with closing(Producer(settings.redis_url, settings.namespace)) as redis:
        # Redis must answer even without queues.
        redis.ping()
        return redis.crews(queues)
