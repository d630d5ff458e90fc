"""Job of an order: one row of `effects`, in the transaction that finishes the job."""

from __future__ import annotations

from time import sleep

from sqlalchemy import text

from drain import current_job, job, transaction

QUEUE = "orders"
LEASE_SECONDS = 1.0

_WRITE = text("INSERT INTO effects (order_id, job_id, fencing_token) VALUES (:order_id, :job_id, :token)")


@job(
    name="drills.settle",
    queue=QUEUE,
    lease_seconds=LEASE_SECONDS,
    timeout_seconds=60,
    retry_base_seconds=0.2,
)
def settle(order_id: int, hold_seconds: float = 0) -> None:
    """Settle an order: write its row of `effects`.

    Args:
        order_id: Id of the order.
        hold_seconds: Seconds that the first attempt waits between its write and its commit.
    """
    this = current_job()
    with transaction() as session:
        session.execute(_WRITE, {"order_id": order_id, "job_id": this.id, "token": this.fencing_token})
        if this.attempt == 1:
            sleep(hold_seconds)
