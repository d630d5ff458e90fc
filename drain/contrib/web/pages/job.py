"""One job; retry, discard and cancel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from typing import Any, TypeAlias

from starlette.responses import PlainTextResponse, Response

from drain import wire
from drain.contrib.web.routing import page
from drain.contrib.web.shortening import shown, shown_error
from drain.contrib.web.views import View
from drain.contrib.web.writes import Done, Write, action
from drain.database.postgres import Connection
from drain.errors import DrainError, UnknownJobError
from drain.jobs.cancelling import cancel
from drain.jobs.editing import Edit, revive_edited
from drain.jobs.progress import fields_of
from drain.read import dependencies, membership, queries
from drain.read.dependencies import IF_IT_DIES, Dependencies
from drain.read.explain import Explanation, explain
from drain.read.explain.timeline import hops_of
from drain.read.membership import Place
from drain.read.queries import TABLES
from drain.tables import dead
from drain.tables.columns import PARKED_UNTIL
from drain.tables.failures import earlier_errors, seconds_of, summary_of, title_of

# Columns of a job's parts.
PARTS = {
    "arguments": "job_args",
    "keyword-arguments": "job_kwargs",
    "context": "context",
    "result": "result",
    "error": "last_error",
    "former-lives": "history",
}
_OF_FINISHED = {"result"}
_NOT_OF_STAGED = {"error"}

# Attempts to read a job that moves between tables.
_LOOKS = 3
_LIVES = 20
_LARGE = {
    "arguments": ("job_args", "Arguments"),
    "keyword-arguments": ("job_kwargs", "Keyword arguments"),
    "context": ("context", "Context"),
    "result": ("result", "Result"),
}
_FACTS = {
    "tag": "Tag",
    "key": "Key",
    "unique_key": "Unique key",
    "priority": "Priority",
    "max_attempts": "Maximum attempts",
    "timeout_seconds": "Timeout, seconds",
    "reason": "Reason",
    "explanation": "Explanation",
    "claimed_by": "Worker",
    "finished_by": "Completed by",
    "interruptions": "Interruptions",
    "fencing_token": "Fencing token",
    "delivery": "Delivery",
}
_TIMES = {
    "lease_expires_at": "Lease ends",
    "next_run_at": "Next attempt",
    "starts_at": "Earliest start",
    "expires_at": "Expires",
}
_SEARCHABLE = {"Tag": "tag", "Key": "key", "Unique key": "unique"}
_STEPS = {
    "moved": "Moved in flight",
    "pushed": "Queued in Redis",
    "popped": "Taken by a worker",
    "begun": "Started",
    "ended": "Returned",
    "finished": "Completed",
    "died": "Dead",
}
# Fields of an earlier death; other writers may leave some out.
_OF_A_LIFE = ("reason", "attempts", "died_at", "explanation")
_OF_AN_EDIT = ("edited_by", "edited_at", "job_args", "job_kwargs")
_CANCELLABLE = ("staged", "inflight")
_Look: TypeAlias = tuple[Explanation, dict[str, Any] | None, Dependencies, Place | None, bool, datetime]
_AGAIN = "has died again since the page was loaded"


def _show(view: View) -> Mapping[str, Any]:
    job_id = view.job_id()
    for _ in range(_LOOKS):
        explanation, job, others, place, has_result, now = _look(view, job_id)
        if job is not None:
            noted, progress = _of_redis(view, job)
            return {
                "job": job,
                "job_id": job_id,
                "now": now,
                "state": _state(job, explanation, now),
                "explanation": explanation,
                "others": others,
                "place": place,
                "hops": hops_of(job, noted),
                "steps": _STEPS,
                "words_of_failures": IF_IT_DIES,
                "searchable": _SEARCHABLE,
                "has_noted": bool(noted),
                "progress": progress,
                "has_result": has_result,
                **_facts(job),
                **_texts(job, has_result=has_result),
                "may_cancel": job["state"] in _CANCELLABLE,
                "redis_problem": view.site.redis.problem,
            }
        if explanation.state == "unknown":
            break
    raise UnknownJobError(f"There is no job {job_id} here: {explanation.finding.why}.")


def _state(job: Mapping[str, Any], explanation: Explanation, now: datetime) -> str:
    if queries.is_blocked(job):
        return "blocked"
    if job["state"] == "staged" and job["scheduled_at"] > now:
        return "scheduled"
    return explanation.state if job["state"] == "inflight" else str(job["state"])


def _look(view: View, job_id: int) -> _Look:
    # Probe Redis first: otherwise the explanation would wait for its timeout.
    view.site.redis.ask(lambda redis: redis.remembers())
    with view.reading() as connection:
        explanation = explain(connection, view.site.redis.producer, job_id)
    with view.snapshot() as connection:
        now = queries.now(connection)
        # In Python, a null result and a missing one are both None.
        has_result = read(connection, job_id, "result") is not None
        others = dependencies.read(connection, job_id)
        place = membership.find(connection, job_id)
        return explanation, _row(connection, job_id), others, place, has_result, now


def _row(connection: Connection, job_id: int) -> dict[str, Any] | None:
    try:
        return queries.job(connection, job_id)
    except UnknownJobError:
        return None


def _of_redis(view: View, job: Mapping[str, Any]) -> tuple[dict[str, datetime], dict[str, Any] | None]:
    url, namespace = view.site.settings.redis_url, view.site.settings.namespace

    def ask(_redis: wire.Producer) -> tuple[dict[str, datetime], dict[str, Any] | None]:
        with closing(wire.Traces(url, namespace)) as traces:
            noted = traces.read(job["id"])
        if job.get("lease_expires_at") is None:
            return noted, None
        with closing(wire.ProgressBoard.at(url, namespace)) as board:
            found = board.read(job["id"])
        return noted, fields_of(found, job["fencing_token"]) if found else None

    return view.site.redis.ask(ask) or ({}, None)


def _facts(job: Mapping[str, Any]) -> dict[str, Any]:
    facts = {title: job[name] for name, title in _FACTS.items() if job.get(name) is not None}
    attempts = job.get("attempts")
    if attempts is not None:
        facts["Attempts"] = attempts + bool(job.get("batched"))
    times = {title: job[name] for name, title in _TIMES.items() if job.get(name) not in (None, PARKED_UNTIL)}
    if wait := job.get("wait"):
        facts |= {"Waits for event": wait["event"]} if wait["event"] else {}
        times |= {"Waits until": wait["deadline"]} if wait["deadline"] else {}
    return {"facts": facts, "times": times}


def _texts(job: Mapping[str, Any], *, has_result: bool) -> dict[str, Any]:
    large = [
        (part, title, shown(job[column]))
        for part, (column, title) in _LARGE.items()
        if job.get(column) is not None or (part == "result" and has_result)
    ]
    history = job.get("history")
    lives = [life for life in history if isinstance(life, dict)] if isinstance(history, list) else []
    numbered = list(enumerate(lives, 1))[: -_LIVES - 1 : -1]
    return {
        "large": large,
        "error": shown_error(job["last_error"]) if job.get("last_error") else None,
        "earlier": [
            {
                "title": title_of(error),
                "worker": error.get("worker"),
                "seconds": seconds_of(error),
                "summary": summary_of(error),
                "text": shown_error(error).text,
            }
            for error in earlier_errors(job.get("last_error"))
        ],
        "lives": [
            (
                number,
                {name: life.get(name, "?") for name in _OF_A_LIFE},
                shown_error(life.get("last_error")),
                shown({name: life.get(name) for name in _OF_AN_EDIT}).text if "edited_by" in life else "",
            )
            for number, life in numbered
        ],
        "lives_left_out": max(0, len(lives) - _LIVES),
    }


def _whole(view: View) -> Response:
    """Return a part as plain text, which no browser renders as a page."""
    job_id, part = view.job_id(), str(view.params["part"])
    if part not in PARTS:
        raise UnknownJobError(f"A job has no part of this name; there are {', '.join(PARTS)}.")
    with view.snapshot() as connection:
        text = read(connection, job_id, part)
    if text is None:
        raise UnknownJobError(f"No table has job {job_id} with this part.")
    disposition = f'attachment; filename="job-{job_id}-{part}.txt"'
    headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
    return PlainTextResponse(text, headers=headers)


def _retry(write: Write) -> Done:
    job_id = write.view.job_id()
    selection = dead.Selection((job_id,), died_by=write.form.seen_at())
    edit = Edit(write.form.text("args"), write.form.text("kwargs"))
    if edit.is_empty:
        revived, what = dead.revive(write.connection, selection), "is staged again"
    else:
        revived = revive_edited(write.connection, selection, job_id, edit, edited_by=write.who)
        what = "is staged again with other arguments"
    if not revived:
        raise _left(write, selection, "retry")
    return _done(write, job_id, what)


def _discard(write: Write) -> Done:
    job_id = write.view.job_id()
    selection = dead.Selection((job_id,), died_by=write.form.seen_at())
    if not dead.discard(write.connection, selection):
        raise _left(write, selection, "discard")
    return Done(f"job {job_id} is discarded", write.view.url("dead"), {"jobs": 1})


def _left(write: Write, selection: dead.Selection, verb: str) -> DrainError:
    connection, job_id = write.connection, write.view.job_id()
    if dead.count(connection, selection):
        return DrainError(f"{dead.why_left(connection, selection, verb)}; nothing was done")
    return DrainError(f"job {job_id} {_whereabouts(connection, job_id, _AGAIN)}; nothing was done")


def _cancel(write: Write) -> Done:
    job_id = write.view.job_id()
    cancelled = cancel(write.connection, job_id)
    if not cancelled.count:
        raise DrainError(f"job {job_id} {_whereabouts(write.connection, job_id)}; nothing was done")
    running = "; its worker learns so at its next heartbeat" if cancelled.running else ""
    return _done(write, job_id, f"is cancelled{running}")


def _done(write: Write, job_id: int, what: str) -> Done:
    return Done(f"job {job_id} {what}", write.view.url("job", job_id=job_id), {"jobs": 1})


def _whereabouts(connection: Connection, job_id: int, if_dead: str = "is dead already") -> str:
    job = _row(connection, job_id)
    if job is None:
        return "is in no table any more"
    if job["state"] == "inflight":
        return f"is in flight now: {queries.inflight_state(job, queries.now(connection))}"
    return {
        "staged": "is staged now, and waits",
        "finished": "has finished already",
        "dead": if_dead,
    }[job["state"]]


ROUTES = [
    page("/jobs/{job_id}", _show, name="job", template="job.html", live="job_live.html"),
    page("/jobs/{job_id}/whole/{part}", _whole, name="job_whole", template=""),
    action("/jobs/{job_id}/retry", _retry, name="job_retry"),
    action("/jobs/{job_id}/discard", _discard, name="job_discard"),
    action("/jobs/{job_id}/cancel", _cancel, name="job_cancel"),
]


def read(connection: Connection, job_id: int, part: str) -> str | None:
    """Read one of `PARTS` as JSON; None if missing."""
    for state, table in TABLES.items():
        if (part in _OF_FINISHED and state != "finished") or (part in _NOT_OF_STAGED and state == "staged"):
            continue
        statement = f"SELECT {PARTS[part]}::text FROM {table} WHERE id = %s"
        for (text,) in connection.execute(statement.encode(), (job_id,)):
            return None if text is None else str(text)
    return None
