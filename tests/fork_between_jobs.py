"""`python -m tests.fork_between_jobs`: a job, another one in a forked child, and one more.

Writes what became of each, and the two sessions of the server that it was done in.
"""

import os
import sys
from typing import Any

import psycopg

from drain import stage
from drain.transitions import staged
from tests.jobs_for_tests import record_in_transaction
from workers import entry
from workers.completion import _engine
from workers.entry import execute


def run(label: str) -> None:
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"], autocommit=True) as connection:
        job_id = stage(connection, record_in_transaction, [label])
        staged.move(connection, [job_id], last_delivery=job_id)
    became = execute(job_id)
    worker = entry._worker().database.connection
    with _engine(os.environ["DRAIN_DATABASE_URL"]).connect() as session:
        driver: Any = session.connection.driver_connection
    assert worker is not None
    sys.stdout.write(f"{became} {worker.info.backend_pid} {driver.info.backend_pid}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run("parent")
    child = os.fork()
    if not child:
        run("child")
        os._exit(0)
    os.waitpid(child, 0)
    run("parent again")
