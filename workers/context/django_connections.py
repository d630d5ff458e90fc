"""Django's connections between two attempts: what is lost, too old, or left in the middle of anything is closed.

Django does that before and after each of its requests; in a worker nobody else would. A connection that is lost would
fail every job of its thread, until the worker is replaced.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from drain.workers.context.guarded import is_ended
from drain.workers.context.lent_connections import lender
from drain.workers.errors import INTERRUPTIONS

log = logging.getLogger(__name__)

# Timeout for the cancellation of a statement.
_CANCEL_SECONDS = 5.0

# Process to which Django's connections belong that are open here.
_pid = os.getpid()
# Those of parent processes: kept, since an end of one would be an end for the parent too.
_inherited: list[Any] = []


def forget_inherited() -> None:
    """Leave the connections of this thread to the parent process, if this is a child that was forked from it.

    Two processes would read each other's answers; and what a child that is killed has written would be in the parent's
    next transaction. asgiref's thread, which a child has not, is started anew.
    """
    global _pid  # noqa: PLW0603
    if os.getpid() == _pid:
        return
    _pid = os.getpid()
    asgiref = sys.modules.get("asgiref.sync")
    executor: Any = asgiref and getattr(asgiref.SyncToAsync, "single_thread_executor", None)
    if executor is not None:
        asgiref.SyncToAsync.single_thread_executor = type(executor)(max_workers=1)  # type: ignore[union-attr]
    connections = _connections()
    if connections is not None:
        for connection in connections.all(initialized_only=True):
            _inherited.append(connection)
            del connections[connection.alias]


def renew(*, shared: bool = False) -> None:
    """Close those of Django's connections in this thread that the next job should not inherit.

    Args:
        shared: Other jobs use them at the same time.

    Raises:
        LeaseLostError, JobCancelledError, JobTimeoutError, WorkerStoppedError, Dead: The job was interrupted meanwhile.
    """
    # All that a job without Django pays: one look at a dict.
    # The connections of a test are the test's to close.
    if "django.db" not in sys.modules or lender.get() is not None:
        return
    try:
        _renew(shared=shared)
    except INTERRUPTIONS:
        raise
    # An exception of a backend's may not fail a job that is finished, nor one that does not use that database.
    except Exception as error:  # noqa: BLE001
        log.warning(
            "Django's connections could not be renewed: %s", error, extra={"event": "connections_not_renewed"}
        )


def renew_beside_the_loop(*, others: bool = False) -> None:
    """Do so in the thread in which asgiref, and so Django's async ORM, executes what must not run in an event loop.

    Args:
        others: Other jobs run in the loop. They share the connections, and may be in the middle of a query: one that is
            well stays, however old it is.
    """
    asgiref = sys.modules.get("asgiref.sync")
    if asgiref is None or "django.db" not in sys.modules or lender.get() is not None:
        return
    executor: Any = getattr(asgiref.SyncToAsync, "single_thread_executor", None)
    # Where no thread has started, there is no connection. Nobody waits for the call: the thread executes it before
    # whatever the job asks of that thread.
    if getattr(executor, "_threads", None):
        with suppress(RuntimeError):
            executor.submit(renew, shared=others)


def _renew(*, shared: bool) -> None:
    connections = _connections()
    for connection in () if connections is None else connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        if connection.in_atomic_block:
            # A test runs jobs within its own transaction: that is the test's to end.
            if not is_of_a_test(connection):
                abandon(connection)
            continue
        driver = connection.connection
        if isinstance(driver, psycopg.Connection) and is_unusable(driver):
            abandon(connection)
        elif not shared:
            connection.close_if_unusable_or_obsolete()
        elif connection.errors_occurred and not connection.is_usable():
            connection.close()


def _connections() -> Any:
    """Return Django's connections; None if it has none yet, half imported or without settings."""
    connections = getattr(sys.modules.get("django.db"), "connections", None)
    conf = sys.modules.get("django.conf")
    return connections if conf is not None and conf.settings.configured else None


def is_of_a_test(connection: Any) -> bool:
    """Return whether a connection is in the transaction of a TestCase of Django's."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def is_unusable(driver: psycopg.Connection[Any]) -> bool:
    """Return whether a connection is lost, or in the middle of a statement or a transaction."""
    if driver.closed or driver.pgconn.transaction_status != TransactionStatus.IDLE:
        return True
    return is_ended(driver)


def abandon(connection: Any) -> None:
    """Let the server drop what a connection of Django's is doing, close it, and let Django make a new one."""
    from django.db import connections

    driver = connection.connection
    if isinstance(driver, psycopg.Connection):
        cancel(driver)
        with suppress(Exception):
            driver.close()
    with suppress(Exception):
        connection.close()
    if connection.in_atomic_block:
        # Django would keep the closed one until the end of a block that never ends.
        with suppress(AttributeError):
            del connections[connection.alias]


def cancel(driver: psycopg.Connection[Any]) -> None:
    """Let the server drop the statement that it executes, if any."""
    if not driver.closed and driver.pgconn.transaction_status == TransactionStatus.ACTIVE:
        with suppress(psycopg.Error):
            driver.cancel_safe(timeout=_CANCEL_SECONDS)
