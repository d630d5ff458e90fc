"""Jobs of a module that remembers which process has imported it."""

import os
import sys

from drain.workers import job, psycopg_transaction

MODULE = "tests.jobs_of_rq_settings"
IMPORTED_IN = os.getpid()


@job(queue="mail")
def tell(label: str) -> None:
    """Leave the three processes: that which imported the module, this one, and its parent; and what is imported."""
    sqlalchemy = "with" if "sqlalchemy" in sys.modules else "without"
    sessions = "with" if "drain.workers.context.session" in sys.modules else "without"
    told = f"{label} {IMPORTED_IN} {os.getpid()} {os.getppid()} {sessions} sessions, {sqlalchemy} SQLAlchemy"
    with psycopg_transaction() as connection:
        connection.execute("INSERT INTO effects (label) VALUES (%s)", [told])


def plain(path: str) -> None:
    """One of RQ's own: leave a file behind."""
    with open(path, "x"):  # noqa: PTH123
        pass
