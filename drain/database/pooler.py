"""Whether a connection has a session of the server to itself, as the leader's lock and LISTEN need it.

PgBouncer and its like lend out a session for as long as the client is connected (session mode), or for one
transaction or one statement at a time. In the latter two modes the lock stays with a session that goes to the
next client: several would lead, or none would until somebody restarts the pooler.

Which mode it is in, no pooler tells. So a few more connections are opened beside ours. In session mode each
of them has a session of its own, and always the same one. In the other modes two of them share one, or one
of them gets several. It takes more than two, since there may be several poolers behind one address.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing

from drain.database import postgres, url
from drain.database.postgres import Connection
from drain.errors import ConfigError

_WITNESSES = 8
# Longer than a pooler takes to open one more session.
_WAIT_SECONDS = 1.0


def require_own_session(connection: Connection, database_url: str) -> None:
    """Return if the connection keeps its session for as long as it lives.

    Asks nothing where no pooler stands between.

    Args:
        connection: New, from `postgres.connect`.
        database_url: What it was opened with.

    Raises:
        ConfigError: A pooler shares sessions.
        UnavailableError, psycopg.OperationalError: It has none for us now.
    """
    if not postgres.is_pooled(connection):
        return
    if not _is_own(connection, database_url):
        raise ConfigError(
            f"{url.describe(database_url)} is a pooler that shares sessions between its clients (transaction "
            "or statement mode), and the lock of `drain run` belongs to a session: give it a DRAIN_DATABASE_URL "
            "that leads to PostgreSQL itself, or to a pool in session mode"
        )
    postgres.mark_session_as_own(connection)


def _is_own(connection: Connection, database_url: str) -> bool:
    pids = {connection: postgres.backend_pid(connection)}
    with ExitStack() as witnesses, ThreadPoolExecutor(1) as thread, ExitStack() as questions:
        for _ in range(_WITNESSES):
            witness = witnesses.enter_context(closing(postgres.dial(database_url, "drain run")))
            answer = thread.submit(postgres.backend_pid, witness)
            questions.callback(_take_back, witness, answer)
            if not _comes(answer):
                # The pool has no session left. If sessions are shared we are now behind the witness in the
                # queue for one, so that its answer is there before ours.
                unchanged = postgres.backend_pid(connection) == pids[connection]
                if not _comes(answer):
                    return unchanged
            pids[witness] = answer.result()
            if len(set(pids.values())) < len(pids):
                return False
            if any(postgres.backend_pid(each) != pid for each, pid in pids.items()):
                return False
    return True


def _comes(answer: Future[int]) -> bool:
    return bool(wait([answer], _WAIT_SECONDS).done)


def _take_back(witness: Connection, answer: Future[int]) -> None:
    if not answer.done():
        postgres.break_off(witness)
