"""Waiting jobs with a unique key; those that give way end in `finished_jobs`.

Waiting means staged and due, delivered and unclaimed, or between attempts; never blocked. Locked rows are being claimed
or changed, so they are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from drain.database.postgres import Connection
from drain.tables.columns import (
    IS_BLOCKED,
    NOT_CLAIMED,
    REQUEST,
    SUPERSEDED,
    SUPERSEDED_IN_FLIGHT,
    SUPERSEDED_STAGED,
    id_array,
)

# Job name and unique key.
Scope: TypeAlias = tuple[str, str]


class Candidate(NamedTuple):
    """Waiting job with a unique key.

    Attributes:
        keep: `last` or `first`; None means `first`.
        state: `inflight`, `ready`, or `scheduled`.
        quiet_seconds: Required time without another job of the key.
        seconds_left: Rest of that time, or at most 0.
        was_claimed: After an expired lease that worker may still run it.
        expires_at: Unix time; only for unclaimed jobs.
    """

    id: int
    state: str
    keep: str | None = None
    quiet_seconds: float | None = None
    seconds_left: float | None = None
    was_claimed: bool = False
    expires_at: float | None = None


_STAGED = """
    (SELECT id, '{state}', keep, quiet_seconds, date_part('epoch',
        greatest(scheduled_at, staged_at + make_interval(secs => quiet_seconds)) - now()), false,
        date_part('epoch', expires_at)
    FROM staged_jobs_{state} AS job
    WHERE job.unique_key = wanted.unique_key AND job.job_name = wanted.job_name
        AND coalesce(job.expires_at > now(), true) {condition}
    ORDER BY job.id DESC LIMIT %(most)s)
"""
_IN_QUIET_TIME = f"AND job.quiet_seconds IS NOT NULL AND NOT {IS_BLOCKED}"
# A job about to expire cannot stand for others.
READ_CANDIDATES = f"""
SELECT wanted.number::integer, found.*
FROM unnest(%(job_names)s::text[], %(unique_keys)s::text[]) WITH ORDINALITY AS wanted (job_name, unique_key, number),
    LATERAL (
    (SELECT id, 'inflight' AS state, keep, NULL::float8 AS quiet_seconds, NULL::float8 AS seconds_left,
        claimed_at IS NOT NULL AS was_claimed,
        CASE WHEN claimed_at IS NULL THEN date_part('epoch', expires_at) END AS expires_at
    FROM inflight_jobs AS job
    WHERE job.unique_key = wanted.unique_key AND job.job_name = wanted.job_name AND job.lease_expires_at IS NULL
        AND (job.claimed_at IS NOT NULL OR coalesce(job.expires_at > now(), true)))
    UNION ALL {_STAGED.format(state="ready", condition="")}
    UNION ALL {_STAGED.format(state="scheduled", condition=_IN_QUIET_TIME)}) AS found
"""


def read_candidates(
    connection: Connection, scopes: Sequence[Scope], most: int
) -> Mapping[Scope, list[Candidate]]:
    """Read each scope's waiting jobs.

    Includes jobs in their quiet time, not expired ones; up to `most` each of ready and scheduled, highest ids first.
    """
    names, keys = zip(*scopes, strict=True)
    found: dict[Scope, list[Candidate]] = {scope: [] for scope in scopes}
    parameters = {"job_names": list(names), "unique_keys": list(keys), "most": most}
    for number, *candidate in connection.execute(READ_CANDIDATES, parameters, binary=True):
        found[scopes[number - 1]].append(Candidate(*candidate))
    return found


LOCK_STAGED = "SELECT id FROM staged_jobs WHERE id = ANY (%s::bigint[]) FOR UPDATE SKIP LOCKED"
LOCK_IN_FLIGHT = f"""
SELECT id FROM inflight_jobs WHERE id = ANY (%s::bigint[]) AND {NOT_CLAIMED} FOR UPDATE SKIP LOCKED
"""


def lock(connection: Connection, ids: Sequence[int]) -> set[int]:
    """Lock waiting jobs; return the ids locked."""
    if not ids:
        return set()
    parameters = (id_array(ids),)
    statements = (LOCK_STAGED, LOCK_IN_FLIGHT)
    return {id_ for statement in statements for (id_,) in connection.execute(statement, parameters)}


_FINISH = f"INSERT INTO finished_jobs ({SUPERSEDED}) SELECT {{values}}, superseded_by FROM gone JOIN pairs USING (id)"
_PAIRS = """
WITH pairs AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(stand)s::bigint[]) AS pair (id, superseded_by)
)"""
SUPERSEDE_STAGED = f"""{_PAIRS}, gone AS (
    DELETE FROM staged_jobs WHERE id = ANY (%(ids)s::bigint[]) RETURNING *
)
{_FINISH.format(values=SUPERSEDED_STAGED)}"""
SUPERSEDE_IN_FLIGHT = f"""{_PAIRS}, gone AS (
    DELETE FROM inflight_jobs WHERE id = ANY (%(ids)s::bigint[]) RETURNING *
)
{_FINISH.format(values=SUPERSEDED_IN_FLIGHT)}"""


def supersede_staged(connection: Connection, stands: Mapping[int, int]) -> int:
    """Finish locked staged jobs; `stands` maps to the standing id."""
    return _supersede(connection, SUPERSEDE_STAGED, stands)


def supersede_in_flight(connection: Connection, stands: Mapping[int, int]) -> int:
    """Finish locked jobs in flight as superseded."""
    return _supersede(connection, SUPERSEDE_IN_FLIGHT, stands)


def _supersede(connection: Connection, statement: str, stands: Mapping[int, int]) -> int:
    if not stands:
        return 0
    return connection.execute(
        statement, {"ids": id_array(stands), "stand": id_array(stands.values())}
    ).rowcount


POSTPONE = """
UPDATE staged_jobs AS job SET scheduled_at = now() + make_interval(secs => quiet.seconds), matured_at = NULL
FROM unnest(%(ids)s::bigint[], %(seconds)s::float8[]) AS quiet (id, seconds)
WHERE job.id = quiet.id AND job.id = ANY (ARRAY (
    SELECT id FROM staged_jobs_ready WHERE id = ANY (%(ids)s::bigint[]) FOR UPDATE SKIP LOCKED))
"""


def postpone(connection: Connection, seconds: Mapping[int, float]) -> int:
    """Reschedule ready rows."""
    if not seconds:
        return 0
    parameters = {"ids": id_array(seconds), "seconds": list(seconds.values())}
    return connection.execute(POSTPONE, parameters).rowcount


# A job that gives way may stand for a later one.
_REQUEST = f"""
    SELECT CASE WHEN (request.stands_for ->> 'id'::text)::bigint > id THEN request.stands_for
        ELSE pg_catalog.to_jsonb(request) - 'stands_for'::text END
    FROM (SELECT {REQUEST}, stands_for FROM staged_jobs WHERE id = wanted.latest
        UNION ALL SELECT {REQUEST}, stands_for FROM inflight_jobs WHERE id = wanted.latest) AS request"""
_STANDS = f"""
SET stands_for = CASE WHEN wanted.latest < (stands_for ->> 'id'::text)::bigint THEN stands_for ELSE ({_REQUEST}) END,
    expires_at = CASE WHEN expires_at IS NOT NULL AND wanted.seconds IS NOT NULL
        THEN greatest(expires_at, to_timestamp(wanted.seconds)) END
FROM unnest(%(ids)s::bigint[], %(latest)s::bigint[], %(seconds)s::float8[]) AS wanted (id, latest, seconds)
WHERE job.id = wanted.id AND job.id = ANY (ARRAY"""
STAND_STAGED = f"""
UPDATE staged_jobs AS job {_STANDS} (
    SELECT id FROM staged_jobs WHERE id = ANY (%(ids)s::bigint[]) FOR UPDATE SKIP LOCKED))
RETURNING job.id
"""
STAND_IN_FLIGHT = f"""
UPDATE inflight_jobs AS job {_STANDS} (
    SELECT id FROM inflight_jobs WHERE {NOT_CLAIMED} AND id = ANY (%(ids)s::bigint[]) FOR UPDATE SKIP LOCKED))
RETURNING job.id
"""


class Stand(NamedTuple):
    """Highest id and earliest expiry of jobs that gave way."""

    latest: int
    expires_at: float | None


def stand(connection: Connection, stands: Mapping[int, Stand]) -> set[int]:
    """Let waiting jobs stand for others; return those still waiting, which may supersede others."""
    if not stands:
        return set()
    parameters = {
        "ids": id_array(stands),
        "latest": id_array(each.latest for each in stands.values()),
        "seconds": [each.expires_at for each in stands.values()],
    }
    statements = (STAND_STAGED, STAND_IN_FLIGHT)
    return {id_ for statement in statements for (id_,) in connection.execute(statement, parameters)}


FENCE = f"""
UPDATE inflight_jobs SET fencing_token = fencing_token + 1 WHERE id = ANY (ARRAY (
    SELECT id FROM inflight_jobs WHERE id = ANY (%s::bigint[]) AND {NOT_CLAIMED} FOR UPDATE SKIP LOCKED))
RETURNING id
"""


def fence(connection: Connection, ids: Sequence[int]) -> set[int]:
    """Fence off earlier claims; return jobs still waiting."""
    return {id_ for (id_,) in connection.execute(FENCE, (id_array(ids),))} if ids else set()


READ_SHARED = """
SELECT job_name, unique_key FROM inflight_jobs WHERE unique_key IS NOT NULL AND lease_expires_at IS NULL
GROUP BY job_name, unique_key HAVING count(*) > 1 LIMIT %s
"""


def read_shared(connection: Connection, most: int) -> list[Scope]:
    """Return keys that several jobs in flight share."""
    return connection.execute(READ_SHARED, (most,)).fetchall()
