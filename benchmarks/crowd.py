"""Millions of jobs in every state, inserted by SQL within seconds; some have hostile texts.

python -m benchmarks.crowd postgresql://... --finished 10000000 --staged 1000000
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing

from drain.database import postgres
from drain.database.postgres import Connection

QUEUES = 20
SCRIPT = "<script>window.hacked = true</script>"
# Texts that try to escape their place on a page: markup, links, writing directions, control characters, length.
HOSTILE = (
    SCRIPT,
    '"><img src=x onerror="window.hacked = true">',
    "' autofocus onfocus='window.hacked = true' x='",
    "javascript:window.hacked=true",
    "</title></pre></textarea></style></script><svg onload=window.hacked=true>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202ereversed\u202c \u2066isolated",
    "a\tb\x1b[31mred\x1b[0m",
    "w" * 250,
)
_JOB = "'shop.jobs.' || (ARRAY['send_receipt', 'charge', 'index', 'report', 'resize'])[1 + n %% 5]"
_QUEUE = f"'queue-' || lpad((n %% {QUEUES})::text, 2, '0')"
_TAG = "'storage.' || (ARRAY['create', 'update', 'remove'])[1 + n %% 3]"
_ERROR = """
jsonb_build_object('type', 'shop.errors.' || (ARRAY['Refused', 'Timeout', 'Missing'])[1 + n %% 3],
    'message', 'order ' || n || ' was refused', 'at', now() - n %% 86400 * interval '1 s',
    'traceback', format(E'Traceback (most recent call last):\\n  File "/srv/shop/jobs.py", line %%s, in charge\\n'
        '    bank.charge(order)\\n  File "/usr/lib/python3/site-packages/bank/client.py", line 7, in charge\\n'
        '    raise Refused(text)\\nshop.errors.Refused: order %%s was refused\\n', 10 + n %% 4, n))
"""
_STAGE = f"""
INSERT INTO staged_jobs (job_name, job_args, queue, priority, tag, key, staged_at, scheduled_at)
SELECT {_JOB}, jsonb_build_array(n), {_QUEUE}, n %% 3, {_TAG}, CASE WHEN n %% 2 = 0 THEN 'customer-' || n %% 500 END,
    now() - n %% 3600 * interval '1 s', now() + CASE WHEN n %% 10 = 0 THEN n %% 86400 ELSE -3600 END * interval '1 s'
FROM generate_series(1, %(count)s) AS n
"""
# One in four each: queued, running, lease expired, waiting for the next attempt.
_MOVE = f"""
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, staged_at, moved_at,
    delivery, attempts, fencing_token, claimed_at, claimed_by, lease_expires_at, next_run_at, last_error)
SELECT %(from)s + n, {_JOB}, jsonb_build_array(n), '{{}}', {_QUEUE}, 0, now() - interval '2 h', {_TAG},
    now() - interval '2 h', now() - interval '1 h', n, (n %% 4 > 0)::int, (n %% 4 > 0)::int,
    CASE WHEN n %% 4 > 0 THEN now() - n %% 3600 * interval '1 s' END,
    CASE WHEN n %% 4 > 0 THEN 'host-' || n %% 9 || ':' || 1000 + n %% 50 END,
    CASE n %% 4 WHEN 1 THEN now() + interval '1 h' WHEN 2 THEN now() - interval '1 min' END,
    CASE n %% 4 WHEN 3 THEN now() + n %% 600 * interval '1 s' END,
    CASE n %% 4 WHEN 3 THEN {_ERROR} END
FROM generate_series(1, %(count)s) AS n
"""
_FINISH = f"""
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, staged_at, moved_at,
    claimed_at, finished_at, finished_by, attempts, fencing_token)
SELECT %(from)s + n, {_JOB}, jsonb_build_array(n), '{{}}', {_QUEUE}, 0, at - interval '3 s', {_TAG},
    at - interval '3 s', at - interval '2 s', at - interval '1 s', at, 'host-' || n %% 9 || ':1000', 1, 1
FROM (SELECT n, now() - n * interval '8 h' / %(count)s AS at FROM generate_series(1, %(count)s) AS n) AS times
"""
_BURY = f"""
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, staged_at, attempts,
    fencing_token, last_error, died_at, reason, explanation)
SELECT %(from)s + n, {_JOB}, jsonb_build_array(n), '{{}}', {_QUEUE}, 0, now() - interval '2 d', {_TAG},
    now() - interval '2 d', 20, 20, {_ERROR}, now() - n * interval '2 d' / %(count)s, 'failed', 'failed 20 times'
FROM generate_series(1, %(count)s) AS n
"""
_HOSTILE_STAGED = """
INSERT INTO staged_jobs (job_name, job_args, job_kwargs, queue, tag, key, unique_key, context)
SELECT btrim(left(text, 255)), jsonb_build_array(text), jsonb_build_object(text, text), 'hostile', left(text, 255),
    left(text, 255), left(text, 250) || position, jsonb_build_object('trace', text)
FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS each (text, position)
"""
_HOSTILE_INFLIGHT = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, staged_at, delivery,
    attempts, fencing_token, claimed_at, claimed_by, lease_expires_at)
SELECT %(from)s + position, btrim(left(text, 255)), jsonb_build_array(text), jsonb_build_object(text, text), 'hostile',
    0, now(), left(text, 255), now(), position, 1, 1, now() - interval '5 h', left(text, 255), now() + interval '1 h'
FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS each (text, position)
"""
_HOSTILE_DEAD = """
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, staged_at, attempts,
    fencing_token, last_error, reason, explanation)
SELECT %(from)s + position, btrim(left(text, 255)), jsonb_build_array(text), '{}', 'hostile', 0, now(),
    left(text, 255), now(), 1, 1, jsonb_build_object('type', text, 'message', text, 'at', now(),
        'traceback', 'Traceback:' || E'\\n  File "' || text || '", line 1, in ' || text || E'\\n' || text),
    'failed', text
FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS each (text, position)
"""
_HOSTILE_CRONS = """
INSERT INTO crons (name, job_name, cron, job_args)
SELECT translate(left(text, 240), E'\\t\\x1b', '  ') || position, btrim(left(text, 255)), '0 3 * * *',
    jsonb_build_array(text)
FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS each (text, position)
"""
_HOSTILE_PAUSE = """
INSERT INTO queue_pauses (key, reason, paused_by) SELECT text, text, text FROM unnest(%(texts)s::text[]) AS text
"""
_RULES = """
INSERT INTO queues (queue, running, rate, fair) VALUES ('queue-00', 5, '100/s', true), ('queue-01', 1, NULL, false)
"""
_ANALYZE = "ANALYZE staged_jobs, inflight_jobs, finished_jobs, dead_jobs"


def fill(
    connection: Connection, *, staged: int = 0, inflight: int = 0, finished: int = 0, dead: int = 0
) -> None:
    """Insert this many jobs in each state, and update the statistics with ANALYZE.

    Ids of jobs that are not staged are reserved from the sequence, so that all ids are unique.
    """
    connection.execute(_STAGE.encode(), {"count": staged})
    for statement, count in ((_MOVE, inflight), (_FINISH, finished), (_BURY, dead)):
        connection.execute(statement.encode(), {"from": _reserved(connection, count), "count": count})
    connection.execute(_RULES)
    connection.execute(_ANALYZE)


def fill_with_hostile_texts(connection: Connection, texts: Sequence[str] = HOSTILE) -> None:
    """Insert a job in each state for each text, with the text in every place that accepts it."""
    connection.execute(_HOSTILE_STAGED, {"texts": list(texts)})
    for statement in (_HOSTILE_INFLIGHT, _HOSTILE_DEAD):
        connection.execute(
            statement.encode(), {"texts": list(texts), "from": _reserved(connection, len(texts))}
        )
    connection.execute(_HOSTILE_CRONS, {"texts": list(texts)})
    connection.execute(_HOSTILE_PAUSE, {"texts": list(texts)})


def _reserved(connection: Connection, count: int) -> int:
    """Reserve ids from the sequence; returns the id before the first."""
    sequence = "pg_get_serial_sequence('staged_jobs', 'id')"
    ((last,),) = connection.execute(f"SELECT nextval({sequence})".encode())
    connection.execute(f"SELECT setval({sequence}, %s)".encode(), (last + count,))
    return int(last)


def main() -> None:
    """Fill the database named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database_url")
    for state in ("staged", "inflight", "finished", "dead"):
        parser.add_argument(f"--{state}", type=int, default=0)
    given = vars(parser.parse_args())
    with closing(postgres.connect(given.pop("database_url"), "crowd")) as connection:
        connection.execute("SET statement_timeout = 0")
        fill(connection, **given)


if __name__ == "__main__":
    main()
