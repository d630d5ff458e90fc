"""Jobs that share a transaction, and report how they ran."""

import os
import time

import psycopg
import sqlalchemy

import drain
from drain.jobs.executors import below_django
from drain.workers import (
    current_job,
    job,
    psycopg_transaction,
    sleep,
    step,
    transaction,
)

MODULE = "tests.jobs_that_share"
SOON = 0.01
TABLE = "CREATE TABLE shared (label text, xid xid8 DEFAULT pg_current_xact_id(), backend int DEFAULT pg_backend_pid())"
WRITE = "INSERT INTO shared (label) VALUES (%s)"


@job(commit="shared", max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def write(label: str) -> None:
    with psycopg_transaction() as connection:
        connection.execute(WRITE, [label])


@job(commit="shared", max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def write_by_session(label: str) -> None:
    with transaction() as session:
        session.execute(sqlalchemy.text("INSERT INTO shared (label) VALUES (:label)"), {"label": label})
