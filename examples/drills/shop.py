"""Application of the drills: orders and their jobs, saved and staged in one transaction."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import NamedTuple, Self

import psycopg

from drain.database import postgres
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drills.jobs import settle

_CREATE = """
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, placed_at timestamptz NOT NULL);
CREATE TABLE effects (order_id bigint NOT NULL, job_id bigint NOT NULL, fencing_token bigint NOT NULL);
"""
_INSERT = "INSERT INTO orders (placed_at) SELECT now() FROM generate_series(1, %s) RETURNING id"

_ROLL_BACK_ONE_IN = 10
# Pause between two orders.
_PAUSE_SECONDS = 0.01
# Pause before the next attempt to connect, while PostgreSQL cannot be reached.
_AWAY_SECONDS = 0.05


class Order(NamedTuple):
    """Order, by its id, and the id of the job that settles it."""

    id: int
    job_id: int


def create(connection: Connection) -> None:
    """Create the application's tables."""
    connection.execute(_CREATE)


def place(connection: Connection, count: int = 1, *, hold_seconds: float = 0) -> list[Order]:
    """Save orders and stage their jobs, in the transaction that is open.

    Args:
        connection: Connection with an open transaction, which the caller commits.
        count: Number of orders.
        hold_seconds: Seconds that the first attempt of each job waits between its write and its commit.
    """
    ids = [id_ for (id_,) in connection.execute(_INSERT, (count,))]
    jobs = settle.stage_many(connection, [(id_, hold_seconds) for id_ in ids])
    return [Order._make(pair) for pair in zip(ids, jobs, strict=True)]


class Shop:
    """Thread that places one order after the other while the block runs; every tenth is rolled back.

    If PostgreSQL cannot be reached, the thread continues as soon as it can.

    Attributes:
        committed: Ids of the orders whose commit was confirmed to the application.
        rolled_back: Number of orders that were rolled back.
    """

    def __init__(self, database_url: str) -> None:
        self.committed: list[int] = []
        self.rolled_back = 0
        self._database_url = database_url
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._trade, name="shop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _trade(self) -> None:
        while not self._closed.is_set():
            try:
                with closing(postgres.connect(self._database_url, "shop")) as connection:
                    self._trade_on(connection)
            except (psycopg.OperationalError, UnavailableError):
                self._closed.wait(_AWAY_SECONDS)

    def _trade_on(self, connection: Connection) -> None:
        number = 0
        while not self._closed.wait(_PAUSE_SECONDS):
            number += 1
            rolls_back = number % _ROLL_BACK_ONE_IN == 0
            with connection.transaction(force_rollback=rolls_back):
                (order,) = place(connection)
            if rolls_back:
                self.rolled_back += 1
            else:
                self.committed.append(order.id)
