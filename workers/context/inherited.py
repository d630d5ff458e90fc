"""Connections of jobs' transactions in a child that a job forks: they remain the parent's.

ROLLBACK, COMMIT or the end of the session, sent by a child that leaves the block, would end the transaction of its
parent. The parent's psycopg does not notice that, and each of its later statements would commit by itself.
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

# Ids of the processes that opened connections, or transactions on them.
_owners: WeakKeyDictionary[psycopg.BaseConnection[Any], int] = WeakKeyDictionary()


def keep_from_children(connection: psycopg.BaseConnection[Any]) -> None:
    """Cut a connection off in each child that this process forks from now on."""
    _owners[connection] = os.getpid()


@contextmanager
def kept_from_children(connection: psycopg.BaseConnection[Any]) -> Iterator[None]:
    """Cut a connection off in each child that the block forks."""
    keep_from_children(connection)
    try:
        yield
    finally:
        _owners.pop(connection, None)


def is_inherited(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether this process is a child in which the connection was cut off."""
    pid = os.getpid()
    return _owners.get(connection, pid) != pid


def refuse_in_child(connection: psycopg.BaseConnection[Any]) -> None:
    """Raise a TransactionError in a child in which the connection was cut off."""
    if is_inherited(connection):
        raise TransactionError(
            "the transaction of a job is for the process that began it, not for a child of it"
        )


def _cut_off() -> None:
    """Replace the sockets of the parent's connections by one that leads nowhere."""
    if not _owners:
        return
    # libpq may be in the middle of anything here, if another thread has forked: it must not be called to close them.
    nowhere, other_end = socket.socketpair()
    with nowhere, other_end:
        for connection in list(_owners):
            # Closed connections have no socket.
            with suppress(psycopg.Error):
                os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)


os.register_at_fork(after_in_child=_cut_off)
