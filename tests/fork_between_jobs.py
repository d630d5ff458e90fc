"""`python -m tests.fork_between_jobs`: a job, another one in a forked child, and one more.

Writes what became of each, and the two sessions of the server that it was done in.
"""

import os
import sys

import psycopg

from drain import stage
from drain.tables import staged
from drain.workers import entry
from drain.workers.context.connection_cache import driver_of, of_session
from drain.workers.entry import execute
from tests.jobs_for_tests import record_in_transaction


def run(label: str) -> None:
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"], autocommit=True) as connection:
        job_id = stage(connection, record_in_transaction, [label])
        staged.move(connection, [job_id], last_delivery=job_id)
    became = execute(job_id)
    worker = entry._worker(job_id, None).database.connection
    with of_session(os.environ["DRAIN_DATABASE_URL"]) as connection:
        session = driver_of(connection).info.backend_pid
    assert worker is not None
    sys.stdout.write(f"{became} {worker.info.backend_pid} {session}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run("parent")
    child = os.fork()
    if not child:
        run("child")
        os._exit(0)
    os.waitpid(child, 0)
    run("parent again")
