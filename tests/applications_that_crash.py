"""Applications that `tests.crashing` kills in the middle of their transaction."""

import os

import psycopg

from drain import cancel, stage
from tests.jobs_that_crash import settle

MODULE = "tests.applications_that_crash"
IDEMPOTENCY_KEY = "webhook:9f"


def stage_once() -> None:
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"]) as connection:
        stage(connection, settle, ["42"], idempotency_key=IDEMPOTENCY_KEY)


def cancel_mail() -> None:
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"]) as connection:
        cancel(connection, queue="mail")
