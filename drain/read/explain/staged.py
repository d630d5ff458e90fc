"""Staged jobs."""

from __future__ import annotations

from drain.formatting import clock, relative, visible
from drain.read.explain import estimates, obstacles
from drain.read.explain.explanation import Explanation, Finding
from drain.read.explain.places import number
from drain.read.explain.rates import rate
from drain.read.explain.situation import Situation
from drain.read.explain.uniqueness import gives_way, quiet


def explain(situation: Situation) -> Explanation:
    """Explain a row of `staged_jobs`."""
    causes = (
        _scheduled,
        obstacles.no_leader,
        obstacles.redis_away,
        obstacles.other_database,
        _expired,
        obstacles.paused,
        obstacles.held,
        quiet,
        gives_way,
        obstacles.order,
        obstacles.limit,
        rate,
        obstacles.list_full,
    )
    found = next((finding for cause in causes if (finding := cause(situation))), None)
    return situation.explanation("staged", found or _next(situation))


def _scheduled(situation: Situation) -> Finding | None:
    at = situation.job["scheduled_at"]
    # The leader reschedules such jobs.
    if at <= situation.now or quiet(situation):
        return None
    why = f"it is scheduled for {clock(at)}, {relative(at, situation.now)}"
    held = [pause for pause in situation.pauses if pause.until is None or pause.until > at]
    if held and held[0].until is None:
        estimate = estimates.none("it is also paused indefinitely")
    else:
        moment = held[0].until if held and held[0].until else at
        estimate = estimates.in_((moment - situation.now).total_seconds(), "at its due time")
    return Finding("scheduled", why, situation.job["staged_at"], estimate, {"scheduled_at": at})


def _expired(situation: Situation) -> Finding | None:
    at = situation.job["expires_at"]
    if at is None or at > situation.now:
        return None
    why = f"it expired at {clock(at)}: the leader is about to mark it dead"
    return Finding("expired", why, at, estimates.none("the job will not run"), {"expires_at": at})


def _next(situation: Situation) -> Finding:
    place = situation.place
    leader = visible((situation.leader or {"name": "the leader"})["name"])
    why = f"nothing blocks it: the leader, {leader}, will take it in one of its next batches"
    why += f"; {number(place.in_queue)} ahead" if place.in_queue else ""
    if place.in_queue or (situation.crew and situation.crew.is_busy):
        estimate = estimates.by_speed(situation, place.before)
    else:
        estimate = estimates.at_once("it is next in its queue")
    return Finding("next", why, situation.due_at, estimate, place.as_json())
