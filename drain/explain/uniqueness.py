"""Jobs that share a unique key: which one stands for the others, and until when all of them wait."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from drain.database.postgres import Connection
from drain.explain.estimates import at_once, in_
from drain.explain.explanation import Finding
from drain.explain.situation import Situation
from drain.tables.columns import DELIVERED
from drain.tables.obstacles import MOST
from drain.wording import duration

# Jobs of one name and unique key that are staged; the latest ones, and of the others the scheduled ones only if all
# of them wait until none has come for some time.
_STAGED = f"""
SELECT id, staged_at FROM (
    SELECT * FROM staged_jobs WHERE unique_key = %(unique_key)s ORDER BY unique_key DESC, id DESC LIMIT {MOST}) AS job
WHERE job_name = %(job_name)s AND (scheduled_at <= now() OR %(quiet)s::boolean)
"""
_DELIVERED = f"""
SELECT id FROM inflight_jobs
WHERE unique_key = %(unique_key)s AND job_name = %(job_name)s AND {DELIVERED} ORDER BY id LIMIT 1
"""


class _Stands(NamedTuple):
    id: int
    where: str


def quiet(situation: Situation) -> Finding | None:
    """Find out whether a staged job waits until no other of its unique key comes, or gives way to another."""
    job = situation.job
    if job["unique_key"] is None:
        return None
    seconds = job["quiet_seconds"]
    parameters = {"unique_key": job["unique_key"], "job_name": job["job_name"], "quiet": seconds is not None}
    rows = situation.connection.execute(_STAGED, parameters, binary=True).fetchall()
    ids = [id_ for id_, _ in rows]
    last = max(staged_at for _, staged_at in rows)
    if (
        seconds is not None
        and (rest := (last + timedelta(seconds=seconds) - situation.now).total_seconds()) > 0
    ):
        estimate = in_(rest, f"if no other job of its unique key is staged in {duration(rest)}")
        why = f"no job of its unique key may come for {duration(seconds)}; the last one came {_ago(situation, last)}"
        details = {"unique_key": job["unique_key"], "quiet_seconds": seconds, "jobs": sorted(ids)[:10]}
        return Finding("quiet", why, situation.due_at, estimate, details)
    return _gives_way(situation, ids, parameters)


def _gives_way(situation: Situation, ids: list[int], parameters: dict[str, object]) -> Finding | None:
    job = situation.job
    stands = _standing(situation.connection, ids, parameters, keep=job["keep"] or "first")
    if stands.id == job["id"]:
        return None
    why = f"job {stands.id}, which {stands.where}, stands for it: it will end as superseded, and does not run"
    estimate = at_once("the leader settles it when it comes to the job")._replace(seconds=None)
    return Finding("gives_way", why, situation.due_at, estimate, {"stands": stands.id})


def _standing(connection: Connection, ids: list[int], parameters: dict[str, object], *, keep: str) -> _Stands:
    if keep == "last":
        return _Stands(max(ids), "is staged")
    delivered = connection.execute(_DELIVERED, parameters).fetchone()
    return _Stands(delivered[0], "waits for a worker") if delivered else _Stands(min(ids), "is staged")


def _ago(situation: Situation, moment: object) -> str:
    return f"{duration(max(0.0, (situation.now - moment).total_seconds()))} ago"  # type: ignore[operator]
