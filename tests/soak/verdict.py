"""Whether anything was lost, ran without a commit, or happened twice: by the tables, once nothing moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drain.audit import Breach
from drain.database.postgres import Connection
from tests.soak.jobs import DOOMED, STEPS
from tests.soak.tables import HELD, RUNNING, RUNNING_PER_KEY, ids

# What must not be, each as the ids of the jobs of which it is true.
# A job that was revived, as its history says, is due at once.
_QUESTIONS = {
    "lost": """
        SELECT job_id FROM wanted
        WHERE job_id NOT IN (SELECT id FROM finished_jobs UNION ALL SELECT id FROM dead_jobs)
    """,
    "ran without a commit": """
        SELECT id FROM (
            SELECT id FROM finished_jobs UNION SELECT id FROM dead_jobs UNION SELECT id FROM stale_finishes
            UNION SELECT job_id FROM effects UNION SELECT job_id FROM sent) AS traces
        WHERE id NOT IN (
            SELECT job_id FROM wanted UNION ALL SELECT last_job_id FROM crons WHERE last_job_id IS NOT NULL)
    """,
    "ticked, and ended other than once": """
        SELECT coalesce(last_job_id, 0) FROM crons LEFT JOIN (
            SELECT tag, count(*) AS jobs FROM (
                SELECT tag FROM finished_jobs UNION ALL SELECT tag FROM dead_jobs) AS ended
            GROUP BY tag) AS ended ON tag = 'cron:' || name
        WHERE jobs IS DISTINCT FROM 1
    """,
    "claimed before its commit": """
        SELECT id FROM finished_jobs JOIN wanted ON job_id = id
        WHERE claimed_at < pg_xact_commit_timestamp(wanted.xmin) AND superseded_by IS NULL
    """,
    "claimed before its time": """
        SELECT id FROM finished_jobs
        WHERE claimed_at < scheduled_at AND superseded_by IS NULL AND history IS NULL
    """,
    "gave way to nothing": """
        SELECT id FROM finished_jobs WHERE superseded_by NOT IN (
            SELECT id FROM finished_jobs UNION ALL SELECT id FROM dead_jobs)
    """,
    "gave way and took effect": """
        SELECT id FROM finished_jobs JOIN effects ON job_id = id WHERE superseded_by IS NOT NULL
    """,
    "took effect twice": "SELECT job_id FROM effects GROUP BY job_id HAVING count(*) > 1",
    "took effect and did not finish so": """
        SELECT job_id FROM effects AS effect WHERE NOT EXISTS (
            SELECT FROM finished_jobs AS job
            WHERE job.id = effect.job_id AND job.fencing_token = effect.fencing_token)
    """,
    "finished without its effect": """
        SELECT job_id FROM wanted WHERE job_id IN (SELECT id FROM finished_jobs WHERE superseded_by IS NULL)
        AND job_id NOT IN (SELECT job_id FROM effects UNION ALL SELECT job_id FROM sent)
    """,
    "took a step twice": "SELECT job_id FROM stepped GROUP BY job_id, step HAVING count(*) > 1",
    "took a step and did not record it so": """
        SELECT job_id FROM (
            (SELECT * FROM stepped EXCEPT SELECT job_id, name, fencing_token FROM job_steps)
            UNION ALL (SELECT job_id, name, fencing_token FROM job_steps
                WHERE job_id IN (SELECT job_id FROM wanted WHERE kind = 'stepped')
                EXCEPT SELECT * FROM stepped)) AS apart
    """,
    "finished without a step": """
        SELECT job_id FROM wanted WHERE kind = 'stepped' AND job_id IN (
            SELECT id FROM finished_jobs WHERE superseded_by IS NULL)
        AND (SELECT count(*) FROM stepped WHERE stepped.job_id = wanted.job_id) < %(steps)s
    """,
    "dead and should not be": """
        SELECT id FROM dead_jobs JOIN wanted ON job_id = id
        WHERE kind <> ALL (%(doomed)s) AND id NOT IN (SELECT job_id FROM cancelled)
        AND NOT (reason = 'cancelled' AND EXISTS (
            SELECT FROM job_edges WHERE child_id = id AND state = 'idle' AND on_failure = 'cancel'))
    """,
    "finished and should be dead": """
        SELECT id FROM finished_jobs JOIN wanted ON job_id = id
        WHERE kind = ANY (%(doomed)s) AND superseded_by IS NULL
    """,
    # By the order of the statements: the leader acts on an end that it has seen. A revived job may end again.
    "delivered before a job that it waited for had ended": """
        SELECT child_id FROM job_edges JOIN finished_jobs AS awaited ON awaited.id = awaited_id
        WHERE history IS NULL AND (SELECT min(number) FROM witness WHERE job_id = child_id AND change > 0)
            < (SELECT max(number) FROM witness WHERE job_id = awaited_id AND change < 0)
    """,
    "still waits for a job": "SELECT child_id FROM job_edges WHERE state = 'waiting'",
    "still waits for an event": "SELECT job_id FROM job_waits",
    "cancelled, and ended otherwise": """
        SELECT job_id FROM cancelled
        WHERE job_id NOT IN (SELECT id FROM dead_jobs WHERE reason = 'cancelled')
    """,
    "cancelled, and took effect": "SELECT job_id FROM cancelled JOIN effects USING (job_id)",
    "staged twice under one idempotency key": """
        SELECT DISTINCT job_id FROM once WHERE idempotency_key IN (
            SELECT idempotency_key FROM once GROUP BY idempotency_key HAVING count(DISTINCT job_id) > 1)
    """,
    # In the order of their commits: the leader lets a job run after it has seen the end of another one.
    "ran beyond the limit of the queue": f"""
        SELECT DISTINCT job_id FROM (
            SELECT job_id, change, sum(change) OVER (
                ORDER BY pg_xact_commit_timestamp(xid), change, number) AS running
            FROM witness WHERE queue = 'calls') AS log
        WHERE change > 0 AND running > {RUNNING}
    """,
    "ran beyond the limit of the key": f"""
        SELECT DISTINCT job_id FROM (
            SELECT job_id, change, queue, sum(change) OVER (
                PARTITION BY queue, key ORDER BY pg_xact_commit_timestamp(xid), change, number) AS running
            FROM witness WHERE queue IN ('calls', 'ordered') AND key IS NOT NULL) AS log
        WHERE change > 0 AND running > CASE queue WHEN 'calls' THEN {RUNNING_PER_KEY} ELSE 1 END
    """,
    "begun though its key was paused": f"""
        SELECT DISTINCT job_id FROM witness, calmed
        WHERE key = '{HELD}' AND change > 0 AND pg_xact_commit_timestamp(xid) < calmed.at
    """,
}
_FORGOTTEN = (
    "SELECT id FROM unnest(%(told)s::bigint[]) AS told (id) WHERE id NOT IN (SELECT job_id FROM wanted)"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        faults: By what must not be, the ids of the jobs of which it is true.
        breaches: What audits have found.
        ended: Processes of ours that have ended without being told to, or did not end though told to.
    """

    faults: dict[str, Sequence[int]]
    breaches: Sequence[str]
    ended: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether there is nothing to be found."""
        return not any(self.faults.values()) and not self.breaches and not any(self.ended.values())


def judge(
    connection: Connection, told: Iterable[int], breaches: Sequence[str], ended: dict[str, int]
) -> Verdict:
    """Ask the tables.

    Args:
        connection: To the database, in which nothing moves any more.
        told: Ids of jobs of which an application was told that they are committed.
        breaches: For the verdict, as they are.
        ended: For the verdict, as it is.
    """
    parameters = {"doomed": list(DOOMED), "steps": len(STEPS)}
    faults = {name: ids(connection, question, parameters) for name, question in _QUESTIONS.items()}
    faults["confirmed and forgotten"] = ids(connection, _FORGOTTEN, {"told": list(told)})
    return Verdict(faults, breaches, ended)


def lines(breaches: Iterable[Breach]) -> list[str]:
    """What an audit has found."""
    return [f"{breach.count} {breach.explanation}" for breach in breaches]


def read(journals: Iterable[Path]) -> list[int]:
    """The ids of jobs of which the applications were told that they are committed."""
    whole = (line for path in journals for line in path.read_text().splitlines(keepends=True))
    # The last line of one that was killed may be cut short.
    return [int(id_) for line in whole if line.endswith("\n") for id_ in line.split()]
