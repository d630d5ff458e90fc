"""Jobs' connections in a forked child: they stay the parent's.

A ROLLBACK, COMMIT or end of session from the child would end the parent's transaction unnoticed, and each later
statement there would commit on its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import psycopg

from drain.workers.errors import TransactionError

# Processes that opened connections, or transactions on them.
_owners: WeakKeyDictionary[psycopg.BaseConnection[Any], int] = WeakKeyDictionary()


def keep_from_children(connection: psycopg.BaseConnection[Any]) -> None:
    """Cut a connection off in children forked from now on."""
    _owners[connection] = os.getpid()


@contextmanager
def kept_from_children(connection: psycopg.BaseConnection[Any]) -> Iterator[None]:
    """Cut a connection off in children forked by the block."""
    keep_from_children(connection)
    try:
        yield
    finally:
        _owners.pop(connection, None)


def is_inherited(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return True in a child that was cut off."""
    pid = os.getpid()
    return _owners.get(connection, pid) != pid


def refuse_in_child(connection: psycopg.BaseConnection[Any]) -> None:
    """Raise TransactionError in a cut-off child."""
    if is_inherited(connection):
        raise TransactionError("a job's transaction belongs to the process that began it, not to a child")


def _cut_off() -> None:
    if not _owners:
        return
    # Another thread may have forked mid-call: libpq must not be called to close them.
    nowhere, other_end = socket.socketpair()
    with nowhere, other_end:
        for connection in list(_owners):
            # Closed connections have no socket.
            with suppress(psycopg.Error):
                os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)


os.register_at_fork(after_in_child=_cut_off)
