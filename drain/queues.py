"""Rules and pauses of queues, changed in the caller's transaction: `drain.queues`.

    from drain import queues

    with Session(engine) as session, session.begin():
        queues.set(session, "calls", running=50, rate="100/s", fair=True)
        queues.pause(session, "calls", key="acme", until=timedelta(minutes=10))

The leader follows within a second of the commit. `drain queue` does the same on the command line.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from drain.admission.options import OPTIONS, with_options
from drain.admission.rules import OnDead, Rate, Rules, check_key, check_queue
from drain.errors import ConfigError
from drain.jobs import executors
from drain.jobs.executors import Connectable
from drain.jobs.options import name_and_options
from drain.jobs.rows import Job
from drain.tables import pauses as paused
from drain.tables import rules as ruled
from drain.tables.pauses import Pause

__all__ = [
    "KEEP",
    "Pause",
    "Rate",
    "Rules",
    "change",
    "list",
    "pause",
    "pauses",
    "replace",
    "resume",
    "set",
    "show",
    "unset",
]

# Bound of the end of a pause, as in the schema.
_LATEST = datetime(9999, 12, 30, tzinfo=UTC)
# Longest pause that has an end: a hundred years.
_LONGEST_PAUSE_SECONDS = 100 * 365 * 24 * 3600
# Upper bounds of the characters of the name of a job, as in the schema, and of a reason, which a table has to show.
_LONGEST_TEXTS = {"job": 255, "reason": 1000}


class _Keep(Enum):
    KEEP = "keep"


# Value of an option of `set` that leaves its rule as it is.
KEEP: Final = _Keep.KEEP


def set(  # noqa: A001  (it is called as queues.set)
    connection: Connectable,
    queue: str,
    *,
    running: int | _Keep | None = KEEP,
    running_per_key: int | _Keep | None = KEEP,
    rate: str | Rate | _Keep | None = KEEP,
    rate_per_key: str | Rate | _Keep | None = KEEP,
    burst: int | _Keep | None = KEEP,
    fair: bool | _Keep | None = KEEP,
    weights: Mapping[str, int | float] | _Keep | None = KEEP,
    ordered: bool | _Keep | None = KEEP,
    on_dead: OnDead | _Keep | None = KEEP,
    aging: timedelta | float | _Keep | None = KEEP,
) -> Rules:
    """Change rules of a queue in the transaction that is open on `connection`; those that are not given stay.

    Args:
        connection: A SQLAlchemy Session or Connection, or a psycopg connection or cursor; never committed.
        queue: Name of the queue.
        running: Upper bound of its jobs that are delivered or claimed at a time; None takes a rule off.
        running_per_key: The same for each key.
        rate: Upper bound of its jobs that begin in a time: `"100/s"`, `"10/min"`, `"5/h"` or `"1/d"`.
        rate_per_key: The same for each key.
        burst: Number of jobs that may begin at once after a pause.
        fair: Keys take turns.
        weights: How often a key has its turn; keys that are not named have the weight 1.
        ordered: The jobs of a key run one at a time, in the order of their ids.
        on_dead: What becomes of the other jobs of a key when one is dead: they wait ("hold"), or go on ("skip").
        aging: Time of waiting that counts as one step of priority; a number is in seconds.

    Returns:
        All rules that the queue has now.

    Raises:
        ConfigError: A rule cannot be used, or contradicts another; nothing has been changed.
        The driver's own IntegrityError: Another transaction has just set a rule that contradicts this one.
    """
    options = {
        "running": running,
        "running_per_key": running_per_key,
        "rate": rate,
        "rate_per_key": rate_per_key,
        "burst": burst,
        "fair": fair,
        "weights": weights,
        "ordered": ordered,
        "on_dead": on_dead,
        "aging": aging,
    }
    return change(connection, queue, {name: value for name, value in options.items() if value is not KEEP})


def change(connection: Connectable, queue: str, options: Mapping[str, Any]) -> Rules:
    """Change rules of a queue as `set` does, by the names of its options.

    Raises:
        ConfigError: As for `set`; or no option is given.
    """
    if not options:
        raise ConfigError(f"queue {check_queue(queue)}: no rule is given; there are {', '.join(OPTIONS)}")
    before = show(connection, queue) or Rules(queue)
    rules = with_options(before, options)
    if rules == Rules(queue):
        unset(connection, queue)
        return rules
    given = {OPTIONS[name.replace("-", "_")] for name in options}
    _write(connection, rules, given)
    return rules


def _write(connection: Connectable, rules: Rules, names: Collection[str]) -> None:
    columns = {name: value for name, value in rules.as_texts().items() if name in names}
    if "weights" in columns:
        columns["weights"] = json.dumps(columns["weights"])
    parameters = {"queue": rules.queue, **columns}
    # CHECKs would be asked about a row of these columns alone if both were one statement. The third one is for a row
    # that another transaction has inserted in between.
    for build in (ruled.update, ruled.insert, ruled.update):
        if executors.execute(connection, build(columns), parameters):
            return


def replace(connection: Connectable, rules: Rules) -> None:
    """Give a queue exactly these rules, in place of those that it has."""
    if rules == Rules(rules.queue):
        unset(connection, rules.queue)
        return
    _write(connection, rules, ruled.TYPES)


def unset(connection: Connectable, queue: str) -> bool:
    """Take all rules off a queue; returns False if it had none. Its pauses stay.

    Raises:
        ConfigError: That is no name of a queue.
    """
    return bool(executors.execute(connection, ruled.DELETE, {"queue": check_queue(queue)}))


def show(connection: Connectable, queue: str) -> Rules | None:
    """Read the rules of a queue; None if it has none.

    Raises:
        ConfigError: That is no name of a queue.
    """
    for row in executors.execute(connection, ruled.READ, {"queue": check_queue(queue)}):
        return Rules.from_row(ruled.row_of(row))
    return None


def list(connection: Connectable) -> builtins.list[Rules]:  # noqa: A001  (it is called as queues.list)
    """Read the rules of all queues that have any, by their names."""
    return [Rules.from_row(ruled.row_of(row)) for row in executors.execute(connection, ruled.READ_ALL, {})]


def pause(
    connection: Connectable,
    queue: str | None = None,
    *,
    job: Job | None = None,
    key: str | int | None = None,
    until: datetime | timedelta | float | None = None,
    reason: str | None = None,
) -> None:
    """Pause a queue, the jobs of a name, or a key: within a second of the commit, nothing of it starts any more.

    A leader has to run: without one, jobs that were delivered before the pause still start.

    What is given together has to apply together: a queue and a key pause that key in that queue. Jobs that run already
    go on, and staging goes on. A pause that is there already lasts until the later of both times.

    Args:
        connection: As for `set`.
        queue: Name of the queue; None for all queues.
        job: Name of the jobs, or their function.
        key: Key of the jobs.
        until: Time at which the pause ends, with its time zone, or how long it lasts; a number is in seconds. None for
            a pause that `resume` ends.
        reason: Sentence for the people who will ask why.

    Raises:
        ConfigError: Nothing is named, or a value cannot be used; nothing has been changed.
    """
    time, seconds = _end(until)
    parameters = _names(queue, job, key) | {
        "until": time,
        "seconds": seconds,
        "reason": None if reason is None else _text("reason", reason),
        "paused_by": None,
    }
    if not executors.execute(connection, paused.PAUSE, parameters):
        raise ConfigError("the time until which to pause has passed already")


def resume(
    connection: Connectable, queue: str | None = None, *, job: Job | None = None, key: str | int | None = None
) -> bool:
    """End the pause of exactly these; returns False if there was none. Other pauses may apply to the same jobs.

    Raises:
        ConfigError: As for `pause`.
    """
    ended = executors.execute(connection, paused.RESUME, _names(queue, job, key))
    return any(held for (held,) in ended)


def pauses(connection: Connectable) -> builtins.list[Pause]:
    """Read the pauses that hold now, the oldest first."""
    return paused.rows_of(executors.execute(connection, paused.READ, {}))


def _names(queue: str | None, job: Job | None, key: str | int | None) -> dict[str, str | None]:
    if queue is None and job is None and key is None:
        raise ConfigError("name a queue, a job or a key: nothing says what is meant")
    return {
        "queue": None if queue is None else check_queue(queue),
        "job_name": None if job is None else _text("job", name_and_options(job)[0]),
        "key": None if key is None else check_key(key),
    }


def _text(name: str, text: object) -> str:
    if not isinstance(text, str) or not text.strip() or re.search("[\0\ud800-\udfff]", text):
        raise ConfigError(f"{name} must be a text that PostgreSQL can store, and not empty")
    if len(text) > (longest := _LONGEST_TEXTS[name]):
        raise ConfigError(f"{name} must have at most {longest:,} characters, not {len(text):,}")
    return str.__str__(text)


def _end(until: datetime | timedelta | float | None) -> tuple[datetime | None, float | None]:
    """Return the end of a pause as a time, or as seconds from now."""
    if until is None:
        return None, None
    if isinstance(until, datetime):
        if until.utcoffset() is None:
            raise ConfigError("until has no time zone; use datetime.now(UTC) + ... or add tzinfo")
        if until >= _LATEST:
            raise ConfigError(f"until must lie before {_LATEST:%Y-%m-%d}; None is a pause that resume ends")
        return until, None
    seconds = until.total_seconds() if isinstance(until, timedelta) else until
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= _LONGEST_PAUSE_SECONDS:
        raise ConfigError("a pause lasts until a time, or for a time above 0 and at most a hundred years")
    return None, float(seconds)
