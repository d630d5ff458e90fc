"""Jobs that wait in `staged_jobs`."""

from __future__ import annotations

from drain.explain import estimates, obstacles
from drain.explain.explanation import Explanation, Finding
from drain.explain.places import number
from drain.explain.rates import rate, rate_of_a_new_leader
from drain.explain.situation import Situation
from drain.explain.uniqueness import quiet
from drain.tables.obstacles import ALWAYS_ROOM
from drain.visible import visible
from drain.wording import clock, relative

# Time within which a leader takes a job that nothing holds, in seconds.
_PROMPTLY_SECONDS = 1.0


def explain(situation: Situation) -> Explanation:
    """Explain a row of `staged_jobs`: the first of the causes that holds it."""
    causes = (
        _scheduled,
        obstacles.no_leader,
        obstacles.redis_away,
        obstacles.other_database,
        _expired,
        obstacles.paused,
        quiet,
        obstacles.order,
        obstacles.limit,
        rate,
        _list_full,
        rate_of_a_new_leader,
    )
    found = next((finding for cause in causes if (finding := cause(situation))), None)
    return situation.explanation("staged", found or _next(situation))


def _scheduled(situation: Situation) -> Finding | None:
    at = situation.job["scheduled_at"]
    if at <= situation.now:
        return None
    why = f"its time has not come: {clock(at)}, {relative(at, situation.now)}"
    held = [pause for pause in situation.pauses if pause.until is None or pause.until > at]
    if held and held[0].until is None:
        estimate = estimates.none("it is paused too, and nobody knows until when")
    else:
        moment = held[0].until if held and held[0].until else at
        estimate = estimates.in_((moment - situation.now).total_seconds(), "when its time comes")
    return Finding("scheduled", why, situation.job["staged_at"], estimate, {"scheduled_at": at})


def _expired(situation: Situation) -> Finding | None:
    at = situation.job["expires_at"]
    if at is None or at > situation.now:
        return None
    why = f"it expired at {clock(at)}: the leader gives it up when it comes to the job"
    return Finding("expired", why, at, estimates.none("the job does not run any more"), {"expires_at": at})


def _list_full(situation: Situation) -> Finding | None:
    """Find out whether the list has ids that workers have not taken yet, and so no room for this one."""
    delivered = sum(job.is_delivered for job in situation.running)
    waited = (situation.now - situation.due_at).total_seconds()
    if not delivered or (delivered <= ALWAYS_ROOM and waited < _PROMPTLY_SECONDS):
        return None
    if unattended := obstacles.no_worker(situation):
        return unattended
    place = situation.place
    of_key = f", {number(place.in_key)} of them of its key" if situation.key else ""
    why = (
        f"the list of queue {situation.queue} in Redis has {number(delivered)} already, as many as workers take in a "
        f"moment; {number(place.in_queue)} staged jobs of the queue come before it{of_key}"
    )
    estimate = estimates.by_speed(situation, place.before + delivered)
    return Finding("list_full", why, situation.due_at, estimate, {"delivered": delivered, **place.as_json()})


def _next(situation: Situation) -> Finding:
    place = situation.place
    leader = visible((situation.leader or {"name": "the leader"})["name"])
    why = f"nothing holds it: {leader}, which leads, takes it in one of its next batches"
    why += f", behind {number(place.in_queue)}" if place.in_queue else ""
    if place.in_queue:
        estimate = estimates.by_speed(situation, place.before)
    else:
        estimate = estimates.at_once("it is the next of its queue")
    return Finding("next", why, situation.due_at, estimate, place.as_json())
