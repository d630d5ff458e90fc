"""Ended jobs: finished, superseded, dead, cancelled."""

from __future__ import annotations

from drain.formatting import count
from drain.read import dependencies
from drain.read.explain.estimates import none
from drain.read.explain.explanation import Explanation, Finding
from drain.read.explain.situation import Situation
from drain.tables.columns import MARKER

_OVER = none("the job has ended")


def explain_finished(situation: Situation) -> Explanation:
    """Explain a row of `finished_jobs`."""
    job = situation.job
    since, by = job["finished_at"], job["superseded_by"]
    if by is not None:
        why = f"superseded by job {by} with the same unique key; it did not run"
        finding = Finding("superseded", why, since, _OVER, {"superseded_by": by})
    else:
        attempts = count(job["attempts"], "attempt")
        worker = job["finished_by"] or "an unknown worker"
        is_end = job["job_name"] == MARKER and not job["attempts"]
        why = "all members completed" if is_end else f"{worker} completed it in {attempts}"
        finding = Finding(
            "finished", why, since, _OVER, {"worker": job["finished_by"], "attempts": job["attempts"]}
        )
    return situation.explanation("finished", finding)


def explain_dead(situation: Situation) -> Explanation:
    """Explain a row of `dead_jobs`."""
    job = situation.job
    cause = "cancelled" if job["reason"] == "cancelled" else "dead"
    reason, explanation = job["reason"], job["explanation"]
    what = explanation if reason in explanation else f"{reason}: {explanation}"
    others = dependencies.read(situation.connection, job["id"])
    idle = [each for each in others.predecessors if each.edge != "met"]
    then = f"stages it again, to wait for job {idle[0].awaited_id}" if idle else "runs it again"
    why = (
        f"{what}; undone by {others.undo}"
        if others.undo
        else f"{what}; `drain dead retry {job['id']}` {then}"
    )
    details = {"reason": reason, "attempts": job["attempts"]}
    finding = Finding(cause, why, job["died_at"], _OVER, details)
    return situation.explanation("dead", finding)
