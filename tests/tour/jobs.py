"""Jobs of a shop as people see them on a bad day."""

from __future__ import annotations

import time

from drain import Dead, current_job, job


class CardDeclinedError(Exception):
    """The bank refuses the card."""


class NoAnswerError(Exception):
    """The bank did not answer."""


@job(name="shop.mail.send_receipt", queue="mail")
def send_receipt(order_id: int) -> None:
    """Write a mail."""
    time.sleep(0.002 + order_id % 7 / 1000)


@job(name="shop.payments.charge", queue="payments", max_attempts=2, retry_base_seconds=1)
def charge(order_id: int) -> None:
    """Ask the bank."""
    time.sleep(0.01)
    _ask_the_bank(order_id)


def _ask_the_bank(order_id: int) -> None:
    if order_id % 17 == 0:
        raise CardDeclinedError(f"the card of order {order_id} was declined")
    if order_id % 23 == 0:
        raise NoAnswerError(f"no answer about order {order_id} within 3 s")


@job(name="shop.search.index_product", queue="search", result="keep")
def index_product(product_id: int) -> int:
    """Write a document."""
    time.sleep(0.005)
    if product_id % 41 == 0:
        raise Dead(f"product {product_id} has no description")
    return product_id


@job(name="shop.exports.export_orders", queue="exports", timeout_seconds=3600)
def export_orders(customer: str, rows: int) -> None:
    """Go on for longer than anybody looks."""
    for number in range(rows):
        current_job().progress(number, rows, f"order {number:,} of {customer}")
        _write_row()


def _write_row() -> None:
    time.sleep(0.1)


@job(name="shop.reports.close_day", queue="reports", cron="0 3 * * *")
def close_day() -> None:
    """Do what a schedule asks for."""
