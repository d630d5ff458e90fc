"""An order that reserves, charges and ships, as one job or as a flow of three, and the books of three departments."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from sqlalchemy import text

import drain
from drain.workers import current_job, job

MODULE = "tests.jobs_of_sagas"
LEASE_SECONDS = 0.5
SOON = 0.01
# The payment service has a database of its own: its writes commit at once, and once per key.
BOOKS = """
CREATE TABLE stock (order_id bigint NOT NULL, delta integer NOT NULL);
CREATE TABLE shipments (order_id bigint NOT NULL, delta integer NOT NULL);
CREATE TABLE payments (order_id bigint NOT NULL, key text, amount integer NOT NULL, UNIQUE (key, amount));
"""


def _book(session: Any, table: str, order_id: int, delta: int) -> int:
    statement = text(f"INSERT INTO {table} (order_id, delta) VALUES (:order_id, :delta)")
    session.execute(statement, {"order_id": order_id, "delta": delta})
    return order_id


def _pay(payment: dict[str, Any], amount: int) -> None:
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"], autocommit=True) as connection:
        if (
            amount < 0
            and not connection.execute("SELECT key FROM payments WHERE key = %(key)s", payment).fetchone()
        ):
            return
        connection.execute(
            "INSERT INTO payments VALUES (%(order_id)s, %(key)s, %(amount)s) ON CONFLICT DO NOTHING",
            {**payment, "amount": amount},
        )


def reserve(session: Any, order_id: int) -> int:
    return _book(session, "stock", order_id, -1)


def put_back(session: Any, order_id: int) -> None:
    _book(session, "stock", order_id, 1)


def name_payment(order_id: int) -> dict[str, Any]:
    return {"order_id": order_id, "key": f"order {order_id} of claim {current_job().fencing_token}"}


def charge(payment: dict[str, Any]) -> None:
    _pay(payment, 10)


def refund(payment: dict[str, Any]) -> None:
    """Refund the payment if there is one: the worker may have died before it, or after."""
    _pay(payment, -10)


def ship(session: Any, order_id: int, *, in_stock: bool) -> int:
    _book(session, "shipments", order_id, 1)
    if not in_stock:
        raise ConnectionError("the shipper does not answer")
    return order_id


def call_back(session: Any, order_id: int) -> None:
    _book(session, "shipments", order_id, -1)


member = job(lease_seconds=LEASE_SECONDS, max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)


@member
def reserve_all(order_id: int) -> None:
    drain.step_transaction.options(undo=put_back)("reserve", reserve, order_id)


@member
def charge_all(order_id: int) -> None:
    # Its key is on record before the payment, so that it can be refunded if the worker dies after it.
    payment = drain.step.options(undo=refund)("payment", name_payment, order_id)
    drain.step("charge", charge, payment)


@member
def ship_all(order_id: int, *, in_stock: bool) -> None:
    drain.step_transaction.options(undo=call_back)("ship", ship, order_id, in_stock=in_stock)


@member
def fulfil(order_id: int, *, in_stock: bool) -> None:
    reserve_all.function(order_id)
    charge_all.function(order_id)
    ship_all.function(order_id, in_stock=in_stock)


def as_job(connection: Any, order_id: int, *, in_stock: bool) -> int:
    """Stage an order as a job."""
    return drain.stage(connection, fulfil, [order_id], {"in_stock": in_stock})


def as_flow(connection: Any, order_id: int, *, in_stock: bool) -> int:
    """Stage an order as a flow."""
    flow = drain.Flow(f"order {order_id}", undo=True)
    flow.add("reserve", reserve_all, [order_id])
    flow.add("charge", charge_all, [order_id], after="reserve")
    flow.add("ship", ship_all, [order_id], {"in_stock": in_stock}, after="charge")
    with connection.transaction():
        return flow.stage(connection).id
