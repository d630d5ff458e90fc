"""Check that a connection has a session of the server to itself, as the leader's lock and LISTEN need it.

PgBouncer and similar poolers give a client a session for as long as it is connected (session mode), or for one
transaction or one statement at a time. In the latter two modes the lock stays with a session that goes to the next
client: several would lead, or none would until the pooler is restarted.

No pooler says which mode it is in. So a few more connections are opened beside the one in question. In session mode
each of them has a session of its own, and always the same one. In the other modes two of them share one, or one of them
gets several. It takes more than two, since there may be several poolers behind one address.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing

from drain.database import postgres, url
from drain.database.postgres import Connection
from drain.errors import ConfigError

# Number of connections that are opened beside the one in question.
_WITNESSES = 8
# Timeout for the first answer of a witness: longer than a pooler takes to open one more session.
_WAIT_SECONDS = 1.0


def require_own_session(connection: Connection, database_url: str) -> None:
    """Raise unless the connection keeps its session for as long as it lives.

    Sends nothing where no pooler stands between program and server.

    Args:
        connection: New, from `postgres.connect`.
        database_url: URL that the connection was opened with.

    Raises:
        ConfigError: A pooler shares sessions.
        UnavailableError, psycopg.OperationalError: The pooler has no session left.
    """
    if not postgres.is_pooled(connection):
        return
    if not _has_own_session(connection, database_url):
        raise ConfigError(
            f"{url.describe(database_url)} is a pooler that shares sessions between its clients (transaction "
            "or statement mode), and the lock of this program belongs to a session: give it a DRAIN_DATABASE_URL "
            "that leads to PostgreSQL itself, or to a pool in session mode"
        )
    postgres.mark_session_as_own(connection)


def _has_own_session(connection: Connection, database_url: str) -> bool:
    pids = {connection: postgres.backend_pid(connection)}
    with ExitStack() as witnesses, ThreadPoolExecutor(1) as thread, ExitStack() as questions:
        for _ in range(_WITNESSES):
            witness = witnesses.enter_context(closing(postgres.dial(database_url, "drain run")))
            answer = thread.submit(postgres.backend_pid, witness)
            questions.callback(_withdraw, witness, answer)
            if not _arrives(answer):
                # The pool has no session left. If sessions are shared, this connection is now behind the witness in the
                # queue for one, so that the witness has its answer first.
                unchanged = postgres.backend_pid(connection) == pids[connection]
                if not _arrives(answer):
                    return unchanged
            pids[witness] = answer.result()
            if len(set(pids.values())) < len(pids):
                return False
            if any(postgres.backend_pid(each) != pid for each, pid in pids.items()):
                return False
    return True


def _arrives(answer: Future[int]) -> bool:
    return bool(wait([answer], _WAIT_SECONDS).done)


def _withdraw(witness: Connection, answer: Future[int]) -> None:
    if not answer.done():
        postgres.break_off(witness)
