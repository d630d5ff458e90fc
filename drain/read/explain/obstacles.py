"""Causes that hold a due job, in the order of its path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drain.admission.depths import room_of
from drain.database.postgres import fetch_one
from drain.errors import OwnedByAnotherError, UnavailableError
from drain.formatting import clock, count, visible
from drain.read.causes import MOST, Running
from drain.read.explain import estimates
from drain.read.explain.estimates import none
from drain.read.explain.explanation import Finding
from drain.read.explain.places import number
from drain.read.explain.situation import Situation
from drain.tables import pauses
from drain.tables.cancellations import HAS_PLACE
from drain.tables.columns import DUE
from drain.tables.pauses import Pause, Pauses

_MOST_NAMED = 5
# Without a start for this long, all workers count as busy.
_A_WHILE_SECONDS = 5.0
_UNTIL_LEADER = none("waits for a leader")
# Jobs with the key: in flight, earlier retries, cancelled but running; then dead; then the number staged.
_KEY_IN_FLIGHT = f"""
SELECT id, claimed_by, next_run_at, lease_expires_at IS NOT NULL, coalesce(claimed_at, moved_at), false FROM (
    (SELECT * FROM inflight_jobs WHERE next_run_at IS NOT NULL AND queue = %(queue)s
     ORDER BY queue, next_run_at LIMIT {MOST})
    UNION ALL
    (SELECT * FROM inflight_jobs WHERE id = ANY (%(running)s::bigint[]))
) AS job WHERE key = %(key)s AND id <> %(id)s::bigint AND (next_run_at IS NULL OR id < %(id)s::bigint)
UNION ALL
SELECT id, claimed_by, NULL, true, claimed_at, true FROM cancelled_claims WHERE {HAS_PLACE} AND key = %(key)s
ORDER BY 1 LIMIT 1
"""
_KEY_DEAD = """
SELECT id, died_at FROM dead_jobs
WHERE queue = %(queue)s AND key = %(key)s AND key IS NOT NULL AND reason <> 'cancelled' LIMIT 1
"""
_KEY_STAGED = f"""
SELECT min(id), count(*), (pg_catalog.array_agg(job_name ORDER BY id))[1] FROM (
    SELECT id, job_name FROM staged_jobs_ready WHERE {DUE} AND queue = %(queue)s AND key = %(key)s
    ORDER BY queue, key, priority, id LIMIT {MOST}) AS job WHERE id < %(id)s::bigint
"""


def no_leader(situation: Situation) -> Finding | None:
    """Report a missing leader."""
    if situation.leader is not None:
        return None
    return Finding("no_leader", "there is no leader: start `drain run`", situation.due_at, _UNTIL_LEADER)


def redis_away(situation: Situation) -> Finding | None:
    """Report an unavailable Redis."""
    if not isinstance(situation.redis_error, UnavailableError):
        return None
    estimate = none("waits for Redis")
    return Finding("redis_away", str(situation.redis_error), situation.due_at, estimate)


def other_database(situation: Situation) -> Finding | None:
    """Report a queue of another database."""
    queue, owner = situation.queue, situation.owner
    if isinstance(situation.redis_error, OwnedByAnotherError):
        why = str(situation.redis_error)
    elif owner is not None:
        why = f"queue {queue} belongs to another database, {owner}: rename one of the queues"
    else:
        return None
    estimate = none("waits until the queue belongs to this database")
    return Finding("other_database", why, situation.due_at, estimate)


def paused(situation: Situation) -> Finding | None:
    """Report the longest pause."""
    if not situation.pauses:
        return None
    pause = situation.pauses[0]
    what = _what_is_paused(pause)
    by = f" by {visible(pause.paused_by)}" if pause.paused_by else ""
    reason = f": {visible(pause.reason)}" if pause.reason else ""
    until = f" until {clock(pause.until)}" if pause.until else ""
    why = f"{what} is paused{until}{by}{reason}"
    if pause.until is None:
        estimate = none("waits for `drain queue resume`")
    else:
        estimate = estimates.in_((pause.until - situation.now).total_seconds(), "when the pause ends")
    details = {name: value for name, value in pause._asdict().items() if value is not None}
    return Finding("paused", why, max(pause.paused_at, situation.due_at), estimate, {"pause": details})


def _what_is_paused(pause: Pause) -> str:
    parts = ((pause.job_name, "job name"), (pause.key, "key"), (pause.queue, "queue"))
    return " of ".join(f"{word} {visible(text)}" for text, word in parts if text is not None)


def held(situation: Situation) -> Finding | None:
    """Report a queue whose rules cannot be applied."""
    if (error := situation.rules.error) is None:
        return None
    why = f"queue {situation.queue} is held because its rules cannot be applied: {visible(error)}"
    estimate = none("waits until the rules are fixed: `drain queue`")
    return Finding("held", why, situation.due_at, estimate, {"error": error})


def order(situation: Situation) -> Finding | None:
    """Report an earlier job of an ordered key."""
    rules, key = situation.rules, situation.key
    if not rules.ordered or key is None:
        return None
    running = [job.id for job in situation.running]
    parameters = {"queue": situation.queue, "key": key, "id": situation.job["id"], "running": running}
    if rules.on_dead == "hold" and (
        dead := situation.connection.execute(_KEY_DEAD, parameters, binary=True).fetchone()
    ):
        return _held_by_dead(situation, *dead)
    return _held_by_earlier(situation, parameters)


def _held_by_dead(situation: Situation, dead_id: int, died_at: Any) -> Finding:
    why = (
        f"the queue is ordered, and job {dead_id} with key {visible(situation.key or '')} is dead: run "
        f"`drain dead retry {dead_id}` or `drain dead discard {dead_id}`"
    )
    estimate = none("waits until that job is retried or discarded")
    return Finding("order_dead", why, max(died_at, situation.due_at), estimate, {"held_by": dead_id})


def _held_by_earlier(situation: Situation, parameters: dict[str, Any]) -> Finding | None:
    key = visible(situation.key or "")
    (first, before, job_name) = fetch_one(situation.connection, _KEY_STAGED, parameters)
    found = situation.connection.execute(_KEY_IN_FLIGHT, parameters, binary=True).fetchone()
    estimate = estimates.by_speed(situation, before, situation.key)
    if found is not None:
        id_, worker, next_run_at, is_claimed, since, is_cancelled = found
        how = "is running" if is_claimed else "is waiting for a worker"
        how = "was cancelled but is still running" if is_cancelled else how
        how = f"will be retried at {clock(next_run_at)}" if next_run_at else how
        why = f"the queue is ordered, and job {id_} with key {key} {how}"
        why += f" on {visible(worker)}" if is_claimed and worker else ""
        details = {"held_by": id_, "before": before, "worker": worker if is_claimed else None}
        return Finding("order", why, max(since, situation.due_at), estimate, details)
    if before:
        if Pauses(pauses.read(situation.connection)).applies(situation.queue, job_name, situation.key):
            estimate = none(f"job {first} is paused")
        why = f"the queue is ordered, and key {key} has {number(before)} ahead, starting with job {first}"
        return Finding("order", why, situation.due_at, estimate, {"held_by": first, "before": before})
    return None


def limit(situation: Situation) -> Finding | None:
    """Report a reached limit."""
    rules, key = situation.rules, situation.key
    of_key = [job for job in situation.running if key is not None and job.key == key]
    if rules.running_per_key is not None and key is not None and len(of_key) >= rules.running_per_key:
        text = _run(len(of_key), f"with key {visible(key)}", f" in queue {situation.queue}")
        return _limited(situation, "limit_of_key", text, rules.running_per_key, of_key)
    if rules.running is not None and len(situation.running) >= rules.running:
        text = _run(len(situation.running), f"in queue {situation.queue}")
        return _limited(situation, "limit", text, rules.running, situation.running)
    return None


def _run(running: int, whose: str, where: str = "") -> str:
    return f"{count(running, 'job')} {whose} {'is' if running == 1 else 'are'} running{where}, the maximum"


def _limited(situation: Situation, cause: str, text: str, most: int, fill: Sequence[Running]) -> Finding:
    if all(job.is_delivered for job in fill) and (unattended := no_worker(situation)):
        return unattended
    of_key = cause == "limit_of_key"
    before = situation.before(of_key=of_key)
    estimate = estimates.by_speed(situation, before, situation.key if of_key else None)
    fills = [
        {"id": job.id, "worker": job.worker if not job.is_delivered else None, "since": job.since}
        for job in fill[:_MOST_NAMED]
    ]
    details = {"limit": most, "running": len(fill), "filled_by": fills, "before": before}
    return Finding(cause, f"{text}: {_names(fill)}", situation.due_at, estimate, details)


def _names(fill: Sequence[Running]) -> str:
    named = "; ".join(
        f"job {job.id} "
        + ("queued" if job.is_delivered else f"on {visible(job.worker or '?')}")
        + f" since {clock(job.since)}"
        for job in fill[:_MOST_NAMED]
    )
    return named + (f"; {len(fill) - _MOST_NAMED:,} more" if len(fill) > _MOST_NAMED else "")


def no_worker(situation: Situation) -> Finding | None:
    """Report a queue without workers."""
    if situation.workers != 0:
        return None
    why = f"no worker serves queue {situation.queue}: start `drain work {situation.queue}`"
    return Finding("no_worker", why, situation.due_at, none("waits for a worker"))


def workers_busy(situation: Situation, before: int) -> Finding | None:
    """Report workers too busy to start a job."""
    crew = situation.crew
    if crew is None or crew.stuck_seconds(situation.now) < _A_WHILE_SECONDS:
        return None
    number = len(crew.workers)
    whose = (
        f"the worker of queue {situation.queue} is"
        if number == 1
        else f"all {number:,} workers of queue {situation.queue} are"
    )
    since = max(crew.began_at or situation.due_at, situation.due_at)
    details = {
        "workers": number,
        "before": before,
        "busy_with": [job._asdict() for job in crew.held[:_MOST_NAMED]],
    }
    why = f"{whose} busy: {crew.busy_with(situation.now)}"
    return Finding("workers_busy", why, since, estimates.by_speed(situation, before), details)


def suspended(situation: Situation) -> Finding | None:
    """Report `rq suspend`."""
    if not situation.is_suspended:
        return None
    why = "`rq suspend` has paused all workers on this Redis: run `rq resume`"
    return Finding("suspended", why, situation.due_at, none("waits for `rq resume`"))


def list_full(situation: Situation) -> Finding | None:
    """Report a full list."""
    depth, listed = situation.depth, situation.listed
    if depth is None or room_of(depth, listed):
        return None
    before = situation.before(of_key=False) + listed
    if held := no_worker(situation) or workers_busy(situation, before):
        return held
    why = f"the Redis list of queue {situation.queue} is full, at {number(listed)}"
    details: dict[str, Any] = {"listed": listed, "depth": depth}
    if situation.job["state"] == "staged":
        place = situation.place
        of_key = f", {number(place.in_key)} with its key" if situation.key is not None else ""
        why += f"; staged ahead: {number(place.in_queue)} in the queue{of_key}"
        details |= place.as_json()
    return Finding("list_full", why, situation.due_at, estimates.by_speed(situation, before), details)
