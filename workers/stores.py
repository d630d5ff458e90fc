"""PostgreSQL and Redis, as the threads of one process find them: a line when one goes away, and one when it is back.

Each thread that asks a store says here how that went. The first failure of a store is the line, whichever thread has
noticed, and the first success after the last failure is the other line. A server that answers, and refuses one
statement, is not away: whoever asked logs that itself.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from time import monotonic, sleep
from types import ModuleType

import psycopg

from drain import wording
from drain.config import Settings
from drain.database import postgres, schema
from drain.errors import UnavailableError

log = logging.getLogger(__name__)

POSTGRES, REDIS = "PostgreSQL", "Redis"
# SQLSTATEs of a server that answers: a statement was canceled or waited for a lock for too long, or had to give way to
# another one, or the server is out of disk or memory.
_ANSWERS = {"57014", "55P03", "40001", "40P01", "53100", "53200"}
# Shortest time after the one line of a store before the next outage of it is logged, should it come and go.
_QUIET_SECONDS = 5.0
# Upper bound for an error of a connection that was closed while nobody used it: the next connection tells.
_STALE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 5.0
_FIRST_ANSWER_SECONDS = 15.0


class Stores:
    """The state of both stores; safe to use from several threads.

    Args:
        changed: Called with the names of those that are away, whenever that changes.
    """

    def __init__(self, changed: Callable[[Collection[str]], None] = lambda _: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        # When each store that is away went away, and when it was last found to be.
        self._away: dict[str, tuple[float, float]] = {}
        self._refuses: set[str] = set()
        self._quiet_until: dict[str, float] = {}
        self._left = 0

    def is_away(self, store: str) -> bool:
        """Whether nobody has reached the store since somebody failed to."""
        return store in self._away

    def failed(self, error: UnavailableError, *, by_loop: bool = False) -> None:
        """Somebody could not reach a store.

        Args:
            error: What was raised; its text is part of the line.
            by_loop: Reported by a loop that goes on asking: only its own success says that Redis takes its commands.
        """
        store = REDIS if str(error).startswith(REDIS) else POSTGRES
        now = monotonic()
        with self._lock:
            since, _ = self._away.get(store, (0.0, 0.0))
            if not since and now < self._quiet_until.get(store, 0.0):
                return
            self._away[store] = (since or now, now)
            if by_loop and store == REDIS:
                self._refuses.add(store)
        if not since:
            log.warning(
                "%s; no job is lost, trying again", error, extra={"event": "down", "store": store.lower()}
            )
            self._changed(tuple(self._away))

    def answered(self, store: str, began: float, *, by_loop: bool = False) -> None:
        """A store has answered what it was asked at `began`, by the monotonic clock."""
        if store not in self._away:
            return
        with self._lock:
            if by_loop:
                self._refuses.discard(store)
            since, last = self._away.get(store, (0.0, 0.0))
            if not since or began < last or store in self._refuses:
                return
            del self._away[store]
            self._quiet_until[store] = monotonic() + _QUIET_SECONDS
            left, self._left = self._left, 0
        log.info(
            "%s is reachable again after %s%s",
            store,
            wording.duration(monotonic() - since),
            f"; {_left(left)}" if left else "",
            extra={"event": "up", "store": store.lower()},
        )
        self._changed(tuple(self._away))

    def leave(self, count: int, error: UnavailableError) -> None:
        """Jobs were left to redelivery because of an error; in an outage the line that ends it says how many."""
        if is_outage(error):
            with self._lock:
                self._left += count
            self.failed(error)
        else:
            log.error("%s: %s", _left(count), error)

    def end(self) -> None:
        """Log how many jobs were left to redelivery, if no other line has."""
        if self._left:
            log.error("%s", _left(self._left))
            self._left = 0


def _left(count: int) -> str:
    return f"{wording.count(count, 'job')} left to redelivery"


def is_outage(error: BaseException) -> bool:
    """Whether a store is away, and has not only refused what it was asked."""
    if not isinstance(error, UnavailableError):
        return False
    cause = error.__cause__ or error.__context__
    if isinstance(cause, psycopg.Error):
        return cause.sqlstate not in _ANSWERS
    return not isinstance(cause, _redis().RedisError) or isinstance(cause, _redis_errors())


def is_stale(began: float) -> bool:
    """Whether a failure of an open connection came so soon that it had been closed before: that is no outage."""
    return monotonic() - began < _STALE_SECONDS


class QuietWhileAway(logging.Filter):
    """Drops what RQ says again and again of a Redis that it cannot reach.

    Args:
        stores: The state of Redis, of which RQ's lines are a report; None if another process logs it.
    """

    def __init__(self, stores: Stores | None = None) -> None:
        super().__init__()
        self._stores = stores

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be logged."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        causes = [each for each in arguments if isinstance(each, _redis_errors())]
        if causes and self._stores is not None:
            self._stores.failed(UnavailableError(f"{REDIS} does not take commands: {causes[0]}"))
        return not causes


def ask_once(settings: Settings) -> None:
    """Return if PostgreSQL has our schema, and Redis answers.

    Raises:
        UnavailableError: One of them is away.
        SchemaError: The database has no schema, or one of another version.
        ConfigError: A URL cannot be read.
    """
    from drain.wire import Producer

    with closing(Producer(settings.required_redis_url, settings.namespace)) as wire:
        with postgres.reachable(settings.database_url):
            connection = postgres.connect(settings.database_url, "drain work")
            with closing(connection), postgres.time_limit(connection, _FIRST_ANSWER_SECONDS):
                schema.check_once(connection)
        wire.ping()


def wait_for(settings: Settings, waits: Callable[[str | None], None]) -> None:
    """Return when both stores answer; one log line says that they do not, and one that they do.

    Args:
        settings: Where they are.
        waits: Called with the reason before each further attempt, and with None at the end.

    Raises:
        SchemaError, ConfigError: As `ask_once`, at once.
    """
    failures = 0
    while True:
        try:
            ask_once(settings)
        except UnavailableError as error:
            if not failures:
                log.warning("%s; waiting for it", error, extra={"event": "down"})
            failures += 1
            waits(str(error).partition("\n")[0])
            longest = min(_LONGEST_PAUSE_SECONDS, 0.2 * 2.0 ** min(failures, 10))
            sleep(random.uniform(0.1, longest))  # noqa: S311
        else:
            break
    if failures:
        log.info("PostgreSQL and Redis answer", extra={"event": "up"})
    waits(None)


@contextmanager
def answering(stores: Stores, store: str, *, by_loop: bool = False) -> Iterator[None]:
    """Report how the block went, which asks a store.

    Raises:
        UnavailableError, redis.RedisError: As the block.
    """
    began = monotonic()
    try:
        yield
    except UnavailableError as error:
        if by_loop or is_outage(error):
            stores.failed(error, by_loop=by_loop)
        raise
    # RQ's own code raises these.
    except _redis_errors() as error:
        stores.failed(UnavailableError(f"{REDIS} does not take commands: {error}"))
        raise
    stores.answered(store, began, by_loop=by_loop)


def _redis() -> ModuleType:
    # Imported here: a process that `rq worker` forks for one job asks PostgreSQL alone.
    import redis

    return redis


def _redis_errors() -> tuple[type[Exception], ...]:
    """Errors of a Redis that cannot be reached."""
    redis = _redis()
    return redis.ConnectionError, redis.TimeoutError
