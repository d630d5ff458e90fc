"""Django's connections between attempts: lost, old or busy ones are closed.

Django does so around requests; in a worker, a lost connection would fail every later job of its thread.
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

_CANCEL_SECONDS = 5.0

_pid = os.getpid()
# Those of parents, kept open: closing would end them there too.
_inherited: list[Any] = []


def forget_inherited() -> None:
    """In a forked child, leave this thread's connections to the parent.

    Otherwise the two would share answers and transactions. asgiref's thread, which a child lacks, is started again.
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
    """Close this thread's Django connections that the next job should not inherit.

    Args:
        shared: Other jobs use them now.
    """
    # Without Django, one dict look-up. A test closes its own connections.
    if "django.db" not in sys.modules or lender.get() is not None:
        return
    try:
        _renew(shared=shared)
    except INTERRUPTIONS:
        raise
    # No backend may fail a finished job, or one without that database.
    except Exception as error:  # noqa: BLE001
        log.warning(
            "Django's connections could not be renewed: %s", error, extra={"event": "connections_not_renewed"}
        )


def renew_beside_the_loop(*, others: bool = False) -> None:
    """Renew in the thread where asgiref, and so Django's async ORM, runs blocking code.

    Args:
        others: Other jobs may be in a query: healthy connections stay, however old.
    """
    asgiref = sys.modules.get("asgiref.sync")
    if asgiref is None or "django.db" not in sys.modules or lender.get() is not None:
        return
    executor: Any = getattr(asgiref.SyncToAsync, "single_thread_executor", None)
    # Not awaited: the thread runs it before the job's calls.
    if getattr(executor, "_threads", None):
        with suppress(RuntimeError):
            executor.submit(renew, shared=others)


def _renew(*, shared: bool) -> None:
    connections = _connections()
    for connection in () if connections is None else connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        if connection.in_atomic_block:
            # A test ends its own.
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
    """Return None while Django is half imported or without settings."""
    connections = getattr(sys.modules.get("django.db"), "connections", None)
    conf = sys.modules.get("django.conf")
    return connections if conf is not None and conf.settings.configured else None


def is_of_a_test(connection: Any) -> bool:
    """Return True for a connection in a Django TestCase's transaction."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def is_unusable(driver: psycopg.Connection[Any]) -> bool:
    """Return True if lost, or in a statement or transaction."""
    if driver.closed or driver.pgconn.transaction_status != TransactionStatus.IDLE:
        return True
    return is_ended(driver)


def abandon(connection: Any) -> None:
    """Cancel the statement and close the connection; Django makes a new one."""
    from django.db import connections

    driver = connection.connection
    if isinstance(driver, psycopg.Connection):
        cancel(driver)
        with suppress(Exception):
            driver.close()
    with suppress(Exception):
        connection.close()
    if connection.in_atomic_block:
        # Django would keep it until the end of a block that never ends.
        with suppress(AttributeError):
            del connections[connection.alias]


def cancel(driver: psycopg.Connection[Any]) -> None:
    """Cancel the current statement, if any."""
    if not driver.closed and driver.pgconn.transaction_status == TransactionStatus.ACTIVE:
        with suppress(psycopg.Error):
            driver.cancel_safe(timeout=_CANCEL_SECONDS)
