"""Rules and pauses of queues, changed in the caller's transaction.

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
from drain.tables import pauses as paused, rules as ruled
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

# As in the schema.
_LATEST = datetime(9999, 12, 30, tzinfo=UTC)
_LONGEST_PAUSE_SECONDS = 100 * 365 * 24 * 3600
# Characters: of job names, as in the schema; of reasons, for display.
_LONGEST_TEXTS = {"job": 255, "reason": 1000}


class _Keep(Enum):
    KEEP = "keep"


# Leaves a rule unchanged.
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
    """Change rules of a queue in the open transaction; omitted options keep theirs.

    Args:
        connection: A SQLAlchemy Session or Connection, or a psycopg connection or cursor; never committed.
        queue: Queue name.
        running: Maximum jobs delivered or claimed at a time; None removes a rule.
        running_per_key: The same, per key.
        rate: Maximum jobs started per unit of time: `"100/s"`, `"10/min"`, `"5/h"` or `"1/d"`.
        rate_per_key: The same, per key.
        burst: Jobs that may start at once after a pause.
        fair: Keys take turns.
        weights: Relative number of turns per key; 1 for other keys.
        ordered: The jobs of a key run one at a time, in id order.
        on_dead: While a key has a dead job, "hold" or "skip" its other jobs.
        aging: Time of waiting that counts as one step of priority; a number is in seconds.

    Returns:
        All rules of the queue.

    Raises:
        ConfigError: A rule is invalid or contradicts another; nothing changed.
        The driver's own IntegrityError: A concurrent transaction set a contradicting rule.
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
    """Change rules of a queue by option name; see `set`.

    Raises:
        ConfigError: As for `set`, or no option.
    """
    if not options:
        raise ConfigError(f"queue {check_queue(queue)}: no rule given; known rules: {', '.join(OPTIONS)}")
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
    # CHECKs would apply to an upsert's new row alone. The second UPDATE is for a row inserted in between.
    for build in (ruled.update, ruled.insert, ruled.update):
        if executors.execute(connection, build(columns), parameters):
            return


def replace(connection: Connectable, rules: Rules) -> None:
    """Replace all rules of a queue."""
    if rules == Rules(rules.queue):
        unset(connection, rules.queue)
        return
    _write(connection, rules, ruled.TYPES)


def unset(connection: Connectable, queue: str) -> bool:
    """Delete all rules of a queue; False if it had none. Pauses stay.

    Raises:
        ConfigError: Invalid queue name.
    """
    return bool(executors.execute(connection, ruled.DELETE, {"queue": check_queue(queue)}))


def show(connection: Connectable, queue: str) -> Rules | None:
    """Read the rules of a queue; None without any.

    Raises:
        ConfigError: Invalid queue name.
    """
    for row in executors.execute(connection, ruled.READ, {"queue": check_queue(queue)}):
        return Rules.from_row(ruled.row_of(row))
    return None


def list(connection: Connectable) -> builtins.list[Rules]:  # noqa: A001  (it is called as queues.list)
    """Read the rules of all queues that have any, by name."""
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
    """Pause a queue, a job name or a key, within a second of the commit.

    No such job starts then, except for delivered ones if there is no leader. Running jobs and staging continue.
    Arguments combine: a queue and a key pause that key in that queue. On an existing pause, the later end applies.

    Args:
        connection: As for `set`.
        queue: Queue name; None for all queues.
        job: Job name or function.
        key: Key of the jobs.
        until: End, as a time with time zone, a timedelta or seconds; None until `resume`.
        reason: Shown to operators.

    Raises:
        ConfigError: Nothing is named, or a value is invalid; nothing changed.
    """
    time, seconds = _end(until)
    parameters = _names(queue, job, key) | {
        "until": time,
        "seconds": seconds,
        "reason": None if reason is None else _text("reason", reason),
        "paused_by": None,
    }
    if not executors.execute(connection, paused.PAUSE, parameters):
        raise ConfigError("until must be in the future")


def resume(
    connection: Connectable, queue: str | None = None, *, job: Job | None = None, key: str | int | None = None
) -> bool:
    """End exactly this pause; False if there was none. Overlapping ones still apply.

    Raises:
        ConfigError: As for `pause`.
    """
    ended = executors.execute(connection, paused.RESUME, _names(queue, job, key))
    return any(held for (held,) in ended)


def pauses(connection: Connectable) -> builtins.list[Pause]:
    """Read the active pauses, oldest first."""
    return paused.rows_of(executors.execute(connection, paused.READ, {}))


def _names(queue: str | None, job: Job | None, key: str | int | None) -> dict[str, str | None]:
    if queue is None and job is None and key is None:
        raise ConfigError("name a queue, a job or a key")
    return {
        "queue": None if queue is None else check_queue(queue),
        "job_name": None if job is None else _text("job", name_and_options(job)[0]),
        "key": None if key is None else check_key(key),
    }


def _text(name: str, text: object) -> str:
    if not isinstance(text, str) or not text.strip() or re.search("[\0\ud800-\udfff]", text):
        raise ConfigError(f"{name} must be a non-empty string that PostgreSQL can store")
    if len(text) > (longest := _LONGEST_TEXTS[name]):
        raise ConfigError(f"{name} must have at most {longest:,} characters, not {len(text):,}")
    return str.__str__(text)


def _end(until: datetime | timedelta | float | None) -> tuple[datetime | None, float | None]:
    if until is None:
        return None, None
    if isinstance(until, datetime):
        if until.utcoffset() is None:
            raise ConfigError("until has no time zone; use datetime.now(UTC) + ... or add tzinfo")
        if until >= _LATEST:
            raise ConfigError(f"until must be before {_LATEST:%Y-%m-%d}; None pauses until resume")
        return until, None
    seconds = until.total_seconds() if isinstance(until, timedelta) else until
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= _LONGEST_PAUSE_SECONDS:
        raise ConfigError("until must be a time, or a duration above 0 and at most a hundred years")
    return None, float(seconds)
