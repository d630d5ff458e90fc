"""Jobs in flight: running, delivered, or retrying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from drain.formatting import clock, relative, visible
from drain.read import queries
from drain.read.causes import MOST
from drain.read.explain import estimates, obstacles
from drain.read.explain.explanation import Estimate, Explanation, Finding
from drain.read.explain.places import number, retries_before
from drain.read.explain.rates import rate
from drain.read.explain.situation import Situation
from drain.tables import waiting
from drain.tables.waits import Wait

# After this, the leader considers an unlisted delivery lost.
_LOST_AFTER_SECONDS = 15.0


def explain(situation: Situation) -> Explanation:
    """Explain a row of `inflight_jobs`."""
    state = queries.inflight_state(situation.job, situation.now)
    causes, last = {
        "running": ((), _running),
        "stalled": ((*_OUTAGES, obstacles.paused), _lease_over),
        "queued": (
            (
                obstacles.redis_away,
                obstacles.other_database,
                obstacles.paused,
                obstacles.suspended,
                _no_worker,
            ),
            _delivered,
        ),
        "parked": ((_parked,), _due_again),
    }.get(state, ((_not_yet, *_OUTAGES, obstacles.paused, _failing, *_RULES), _due_again))
    found = next((finding for cause in causes if (finding := cause(situation))), None)
    if state == "deferred" and situation.job["claimed_at"] is None:
        state = "called_back"
    return situation.explanation(state, found or last(situation))


def _running(situation: Situation) -> Finding:
    job = situation.job
    worker, lease = job["claimed_by"], job["lease_expires_at"]
    why = f"{visible(worker or 'an unknown worker')} is running it; its lease lasts until {clock(lease)}"
    why += "; it was claimed in a batch, and may still wait for earlier jobs" if job["batched"] else ""
    details = {"worker": worker, "lease_expires_at": lease}
    return Finding("running", why, job["claimed_at"], Estimate(None, "it has started"), details)


def _lease_over(situation: Situation) -> Finding:
    job = situation.job
    why = (
        f"its worker, {visible(job['claimed_by'])}, died or stalled: the lease expired, and the leader will deliver "
        "the job again within a second"
    )
    estimate = estimates.by_speed(situation, sum(each.is_delivered for each in situation.running))
    return Finding("lease_over", why, job["lease_expires_at"], estimate, {"worker": job["claimed_by"]})


def _not_yet(situation: Situation) -> Finding | None:
    job = situation.job
    at: datetime = job["next_run_at"]
    if at <= situation.now:
        return None
    estimate = estimates.in_((at - situation.now).total_seconds(), "at its due time")
    when = f"{clock(at)}, {relative(at, situation.now)}"
    details = {"next_run_at": at, "attempts": job["attempts"]}
    if queries.inflight_state(job, situation.now) == "deferred":
        why = f"it was deferred, or its worker stopped; next attempt at {when}"
        return Finding("deferred", why, job["claimed_at"] or job["moved_at"], estimate, details)
    error = job["last_error"] if isinstance(job["last_error"], dict) else {}
    because = f" ({visible(str(error['type']))})" if error.get("type") else ""
    why = f"it failed{because}; next attempt at {when}"
    return Finding("retry_at", why, job["failed_at"], estimate, details)


def _parked(situation: Situation) -> Finding | None:
    wait = Wait.read(situation.connection, situation.job["id"])
    if wait is None:
        return None
    until = "" if wait.deadline is None else f" until {clock(wait.deadline)}"
    why = f"it waits for event {visible(wait.event)}{until}" if wait.event else f"it sleeps{until}"
    if wait.deadline is None:
        estimate = estimates.none("depends on when the event is emitted")
    else:
        left = max(0.0, (wait.deadline - situation.now).total_seconds())
        estimate = estimates.in_(
            left, "at its timeout, or earlier" if wait.event else "at the end of its sleep"
        )
    return Finding("parked", why, wait.began_at, estimate, wait._asdict())


def _failing(situation: Situation) -> Finding | None:
    queues = waiting.retrying_queues(situation.connection)
    failing = next((queue for queue in queues if queue.queue == situation.queue and queue.failing), None)
    if failing is None:
        return None
    before = retries_before(situation.connection, situation.job)
    last = (
        f"the last job completed at {clock(failing.last_finish)}"
        if failing.last_finish
        else "no job completed"
    )
    why = (
        f"queue {situation.queue} keeps failing ({last}), so its retries run one at a time until "
        f"a job completes; {number(before)} ahead"
    )
    estimate = estimates.none("depends on when a job in the queue completes")
    return Finding("failing_queue", why, situation.due_at, estimate, {"before": before})


def _due_again(situation: Situation) -> Finding:
    before = retries_before(situation.connection, situation.job)
    why = f"its next attempt is due: the leader will deliver it shortly; {number(before)} ahead"
    estimate = estimates.by_speed(situation, before + sum(each.is_delivered for each in situation.running))
    return Finding("next", why, situation.due_at, estimate, {"before": before})


def _no_worker(situation: Situation) -> Finding | None:
    finding = obstacles.no_worker(situation)
    return finding._replace(since=_delivered_at(situation)) if finding else None


def _delivered(situation: Situation) -> Finding:
    since = _delivered_at(situation)
    if not situation.knows_redis:
        why = f"it is waiting for a worker of queue {situation.queue}"
        return Finding("queued", why, since, estimates.none("its position in Redis is unknown"))
    before = situation.ids_before(MOST)
    is_far = before is None and situation.listed > MOST
    if (before is not None or is_far) and (
        held := obstacles.workers_busy(situation, MOST + 1 if before is None else before)
    ):
        return held._replace(since=max(since, held.since or since))
    if is_far:
        listed = situation.listed
        why = (
            f"it is waiting for a worker, behind more than {MOST:,} of {listed:,} in the Redis list of queue "
            f"{situation.queue}"
        )
        return Finding("queued", why, since, estimates.by_speed(situation, MOST + 1), {"listed": listed})
    if before is None:
        return _not_in_the_list(situation)
    why = f"it is waiting for a worker; {number(before)} ahead in the Redis list of queue {situation.queue}"
    details = {"before": before, "workers": situation.workers}
    return Finding("queued", why, since, estimates.by_speed(situation, before), details)


def _not_in_the_list(situation: Situation) -> Finding:
    since = _delivered_at(situation)
    is_lost = (situation.now - since).total_seconds() > _LOST_AFTER_SECONDS or not situation.remembers
    if is_lost and (finding := obstacles.no_leader(situation)):
        return finding
    if not situation.remembers:
        why = "Redis lost its data: the leader is about to push the job again"
        return Finding("next", why, since, estimates.at_once("the leader will push it"))
    why = (
        "it is not in its queue's Redis list: a worker has popped it and is about to claim it, or the leader is about "
        f"to push it; if the worker died, the leader will deliver the job again after {_LOST_AFTER_SECONDS:g} s"
    )
    return Finding("popped", why, since, estimates.at_once("a worker or the leader is handling it"))


def _delivered_at(situation: Situation) -> datetime:
    job = situation.job
    times: tuple[datetime | None, ...] = (job["moved_at"], job["claimed_at"], job["failed_at"])
    return max(time for time in times if time is not None)


_OUTAGES: Sequence[Callable[[Situation], Finding | None]] = (
    obstacles.no_leader,
    obstacles.redis_away,
    obstacles.other_database,
)
_RULES: Sequence[Callable[[Situation], Finding | None]] = (
    obstacles.held,
    obstacles.order,
    obstacles.limit,
    rate,
    obstacles.list_full,
)
