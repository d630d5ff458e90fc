"""Dead jobs, written into their table as workers write them."""

from datetime import datetime
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

_INSERT = """
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, attempts,
    fencing_token, last_error, reason, explanation, tag, key, unique_key, expires_at, died_at, context, history)
SELECT nextval('staged_jobs_id_seq'), %(job_name)s, %(job_args)s, %(job_kwargs)s, %(queue)s, 0,
    now() - interval '1 hour', now() - interval '1 hour', 10, 3, %(last_error)s, %(reason)s, %(explanation)s, %(tag)s,
    %(key)s, %(unique_key)s, %(expires_at)s, coalesce(%(died_at)s, now()), NULL, %(history)s
FROM generate_series(1, %(count)s) RETURNING id
"""


def traceback(*frames: str, last: str = "ValueError: no") -> str:
    """A traceback through these places, each as `path:line:function`."""
    lines = ["Traceback (most recent call last):"]
    for path, line, function in (frame.split(":") for frame in frames):
        lines += [f'  File "{path}", line {line}, in {function}', f"    {function}()"]
    return "\n".join([*lines, last, ""])


def error(*frames: str, kind: str = "ValueError", message: str = "no") -> dict[str, str]:
    return {"type": kind, "message": message, "traceback": traceback(*frames, last=f"{kind}: {message}")}


def bury(
    database_url: str,
    job_name: str = "shop.jobs.send",
    last_error: Any = None,
    *,
    count: int = 1,
    job_args: Any = (),
    queue: str = "mail",
    reason: str = "failed",
    explanation: str = "failed 10 times",
    died_at: datetime | None = None,
    **columns: Any,
) -> list[int]:
    """Write so many dead jobs; returns their ids."""
    history = columns.pop("history", None)
    given = dict.fromkeys(("tag", "key", "unique_key", "expires_at")) | {
        "job_name": job_name,
        "job_args": Jsonb(list(job_args)),
        "job_kwargs": Jsonb(columns.pop("job_kwargs", {})),
        "history": Jsonb(history) if history else None,
        "last_error": None if last_error is None else Jsonb(last_error),
        "queue": queue,
        "reason": reason,
        "explanation": explanation,
        "died_at": died_at,
        "count": count,
    }
    with psycopg.connect(database_url, autocommit=True) as connection:
        return [job_id for (job_id,) in connection.execute(_INSERT, given | columns)]
