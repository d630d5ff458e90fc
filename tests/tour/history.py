"""Three hours of a shop's jobs, written into the tables: what a dashboard shows needs a past."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from drain.database.postgres import Connection

_HOURS = 3
_FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, finished_by, attempts, fencing_token, tag, key)
SELECT nextval('staged_jobs_id_seq'), %(name)s, jsonb_build_array(number), '{}', %(queue)s, 0, due, due,
    due + interval '2 ms', due + wait, due + wait + run, 'web-' || number %% 2 + 1 || ':811:c0ffee', 1, 1, %(tag)s,
    'customer-' || number %% 40
FROM (
    SELECT number, interval '1 s' * (0.003 + power(random(), 9) * %(slowest_wait)s) AS wait,
        interval '1 s' * %(seconds)s * (0.4 + random() + 3 * power(random(), 8)) AS run,
        now() - interval '30 s' - interval '3 hours' * power(random(), 1.3 + 0.2 * sin(number)) AS due
    FROM generate_series(1, %(number)s) AS numbers (number)) AS jobs
"""
_DEAD = """
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, attempts,
    fencing_token, last_error, died_at, reason, explanation, tag, key, max_attempts, timeout_seconds)
VALUES (nextval('staged_jobs_id_seq'), %(name)s, %(args)s, '{}', %(queue)s, 0, %(due)s, %(due)s, %(attempts)s,
    %(attempts)s, %(error)s, %(died)s, 'failed', %(why)s, %(tag)s, %(key)s, %(attempts)s, 30)
"""
_TRACEBACK = """Traceback (most recent call last):
  File "{file}", line {line}, in {function}
    {code}
  File "/srv/shop/{inner}", line {inner_line}, in {inner_function}
    {inner_code}
{kind}: {message}
"""


class Work(NamedTuple):
    """One kind of jobs of the shop, in three hours."""

    name: str
    queue: str
    number: int
    seconds: float
    slowest_wait: float
    tag: str


class Failure(NamedTuple):
    """One kind of failure; `share` of its deaths are within the last half hour."""

    name: str
    queue: str
    number: int
    attempts: int
    kind: str
    message: str
    place: tuple[str, int, str, str]
    inner: tuple[str, int, str, str]
    tag: str


WORK = (
    Work("shop.mail.send_receipt", "mail", 5_400, 0.18, 2.0, "checkout"),
    Work("shop.search.index_product", "search", 9_600, 0.05, 0.8, "catalogue"),
    Work("shop.payments.charge", "payments", 2_700, 0.7, 6.0, "checkout"),
    Work("shop.exports.export_orders", "exports", 40, 45.0, 20.0, "back office"),
)
FAILURES = (
    Failure(
        "shop.payments.charge",
        "payments",
        38,
        5,
        "shop.payments.CardDeclinedError",
        "card of order {order} declined: insufficient funds",
        ("/srv/shop/payments.py", 48, "charge", "receipt = bank.charge(order.card, order.total)"),
        ("bank.py", 112, "charge", "raise CardDeclinedError(answer.reason)"),
        "checkout",
    ),
    Failure(
        "shop.payments.charge",
        "payments",
        23,
        5,
        "httpx.ReadTimeout",
        "no answer from api.bank.example within 10 s",
        ("/srv/shop/payments.py", 48, "charge", "receipt = bank.charge(order.card, order.total)"),
        ("bank.py", 97, "charge", "answer = self.client.post('/charges', json=body)"),
        "checkout",
    ),
    Failure(
        "shop.search.index_product",
        "search",
        14,
        3,
        "KeyError",
        "'description'",
        ("/srv/shop/search.py", 31, "index_product", "document = build_document(product)"),
        ("documents.py", 17, "build_document", "text = product['description']"),
        "catalogue",
    ),
)


def write(connection: Connection) -> None:
    """Insert completed and dead jobs; the same ones on each call, apart from their times."""
    chance = random.Random(7)
    connection.execute("SELECT setseed(0.7)")
    for work in WORK:
        connection.execute(_FINISHED, work._asdict())
    now = datetime.now(UTC)
    for failure in FAILURES:
        for _ in range(failure.number):
            order = chance.randrange(40_000, 60_000)
            died = now - timedelta(hours=_HOURS) * chance.random() ** 2
            connection.execute(_DEAD, _row(failure, order, died))


def _row(failure: Failure, order: int, died: datetime) -> dict[str, object]:
    (file, line, function, code), (inner, inner_line, inner_function, inner_code) = (
        failure.place,
        failure.inner,
    )
    message = failure.message.format(order=order)
    error = {
        "type": failure.kind,
        "message": message,
        "at": died.isoformat(),
        "traceback": _TRACEBACK.format(
            file=file,
            line=line,
            function=function,
            code=code,
            inner=inner,
            inner_line=inner_line,
            inner_function=inner_function,
            inner_code=inner_code,
            kind=failure.kind,
            message=message,
        ),
    }
    return {
        "name": failure.name,
        "args": json.dumps([order]),
        "queue": failure.queue,
        "due": died - timedelta(minutes=11),
        "died": died,
        "attempts": failure.attempts,
        "error": json.dumps(error),
        "why": f"failed {failure.attempts} times; last: {failure.kind}: {message}",
        "tag": failure.tag,
        "key": f"customer-{order % 40}",
    }
