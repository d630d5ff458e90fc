"""State of PostgreSQL and Redis in one process, with one log line per outage and recovery.

A server that refuses a statement is available: the asking thread logs that.
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

from drain import formatting
from drain.config import Settings
from drain.database import postgres, schema
from drain.errors import UnavailableError

log = logging.getLogger(__name__)

POSTGRES, REDIS = "PostgreSQL", "Redis"
# SQLSTATEs of an available server: cancelled, lock timeouts, aborts, or out of disk or memory.
_ANSWERS = {"57014", "55P03", "40001", "40P01", "53100", "53200"}
# Between logged outages of one store.
_QUIET_SECONDS = 5.0
# A connection closed while idle fails within this; the next one shows whether the store is available.
_STALE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 5.0
_FIRST_ANSWER_SECONDS = 15.0


class Stores:
    """State of both stores; thread-safe.

    Args:
        changed: Called with the unavailable stores after each change.
    """

    def __init__(self, changed: Callable[[Collection[str]], None] = lambda _: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        # First and last failure of each unavailable store.
        self._away: dict[str, tuple[float, float]] = {}
        self._refuses: set[str] = set()
        self._quiet_until: dict[str, float] = {}
        self._left = 0

    def is_away(self, store: str) -> bool:
        """Return True if the store is known to be unavailable."""
        return store in self._away

    def failed(self, error: UnavailableError, *, by_loop: bool = False) -> None:
        """Report that a store could not be reached.

        Args:
            by_loop: Reported by a loop that keeps asking: only its success shows that Redis takes its commands.
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
        """Report an answer to a request sent at `began`, by `monotonic()`."""
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
            formatting.duration(monotonic() - since),
            f"; {_left(left)}" if left else "",
            extra={"event": "up", "store": store.lower()},
        )
        self._changed(tuple(self._away))

    def leave(self, count: int, error: UnavailableError) -> None:
        """Report jobs left to redelivery; the line that ends the outage counts them."""
        if is_outage(error):
            with self._lock:
                self._left += count
            self.failed(error)
        else:
            log.error("%s: %s", _left(count), error, extra={"event": "left_to_redelivery"})

    def end(self) -> None:
        """Log jobs left to redelivery, if not yet logged."""
        if self._left:
            log.error("%s", _left(self._left), extra={"event": "left_to_redelivery"})
            self._left = 0


def _left(count: int) -> str:
    return f"{formatting.count(count, 'job')} left to redelivery"


def is_outage(error: BaseException) -> bool:
    """Return True if the store is unavailable, rather than refusing a request."""
    if not isinstance(error, UnavailableError):
        return False
    cause = error.__cause__ or error.__context__
    if isinstance(cause, psycopg.Error):
        return cause.sqlstate not in _ANSWERS
    return not isinstance(cause, _redis().RedisError) or isinstance(cause, _redis_errors())


def is_stale(began: float) -> bool:
    """Return True if an open connection failed so soon that it had been closed: not an outage."""
    return monotonic() - began < _STALE_SECONDS


class QuietWhileAway(logging.Filter):
    """Filter of RQ's repeated lines about an unavailable Redis.

    Args:
        stores: Takes these lines as reports; None if another process logs them.
    """

    def __init__(self, stores: Stores | None = None) -> None:
        super().__init__()
        self._stores = stores

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a record should be logged."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        causes = [each for each in arguments if isinstance(each, _redis_errors())]
        if causes and self._stores is not None:
            self._stores.failed(UnavailableError(f"{REDIS} does not take commands: {causes[0]}"))
        return not causes


def ask_once(settings: Settings) -> None:
    """Ask both stores once.

    Raises:
        UnavailableError: One is unavailable.
        SchemaError: The schema is missing or of another version.
        ConfigError: A URL is invalid.
    """
    from drain.wire import Producer

    with closing(Producer(settings.required_redis_url, settings.namespace)) as wire:
        with postgres.reachable(settings.database_url):
            connection = postgres.connect(settings.database_url, "drain work")
            with closing(connection), postgres.time_limit(connection, _FIRST_ANSWER_SECONDS):
                schema.check_once(connection)
        wire.ping()


def wait_for(settings: Settings, waits: Callable[[str | None], None]) -> None:
    """Wait until both stores answer, with one log line at the start and one at the end.

    Args:
        waits: Called with the reason before each retry, and None at the end.

    Raises:
        SchemaError, ConfigError: As `ask_once`.
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
        log.info("PostgreSQL and Redis are available", extra={"event": "up"})
    waits(None)


@contextmanager
def answering(stores: Stores, store: str, *, by_loop: bool = False) -> Iterator[None]:
    """Report whether the block's request succeeded; exceptions pass."""
    began = monotonic()
    try:
        yield
    except UnavailableError as error:
        if by_loop or is_outage(error):
            stores.failed(error, by_loop=by_loop)
        raise
    # Raised by RQ's own code.
    except _redis_errors() as error:
        stores.failed(UnavailableError(f"{REDIS} does not take commands: {error}"))
        raise
    stores.answered(store, began, by_loop=by_loop)


def _redis() -> ModuleType:
    # A process forked by `rq worker` asks only PostgreSQL.
    import redis

    return redis


def _redis_errors() -> tuple[type[Exception], ...]:
    redis = _redis()
    return redis.ConnectionError, redis.TimeoutError
