"""Check that a connection keeps its server session.

In transaction or statement mode, a pooler gives the session with the leader's lock to other clients: several
processes lead, or none. No pooler reports its mode, so further connections are compared.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing

from drain.database import postgres, url
from drain.database.postgres import Connection
from drain.errors import ConfigError

# Several poolers may share an address.
_WITNESSES = 8
# Longer than a pooler takes to open a session.
_WAIT_SECONDS = 1.0


def require_own_session(connection: Connection, database_url: str) -> None:
    """Raise unless the connection keeps its session; a no-op without a pooler.

    Raises:
        ConfigError: A pooler shares sessions.
        UnavailableError, psycopg.OperationalError: It has no session left.
    """
    if not postgres.is_pooled(connection):
        return
    if not _has_own_session(connection, database_url):
        raise ConfigError(
            f"{url.describe(database_url)} is a pooler that shares sessions between its clients (transaction "
            "or statement mode), but this program's lock belongs to a session: point DRAIN_DATABASE_URL at "
            "PostgreSQL itself, or at a pool in session mode"
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
                # The pool is exhausted. If it shares sessions, this one now queues behind the witness.
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
