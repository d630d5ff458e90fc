"""Jobs whose steps can be undone, one in each way to run a step; and what undoes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from sqlalchemy import text

import drain
from drain.workers import current_job, job
from drain.workers.context.current import current_attempt
from tests.blocks import OfDjango, use_django_at
from tests.helpers import query
from tests.inprocess_worker import leave

MODULE = "tests.jobs_with_undo"
SOON = 0.01
_SQL = "INSERT INTO effects (label) VALUES (:label)"
# Step with an undo, by its name, and a label to leave.
Way = Callable[[str, str], Any]


def do(label: str) -> str:
    query(current_attempt().database_url, "INSERT INTO effects (label) VALUES (%s)", label)
    return label


def undo(label: str) -> None:
    do(f"undo {label}")


async def do_in_loop(label: str) -> str:
    await asyncio.sleep(0)
    return do(label)


async def undo_in_loop(label: str) -> None:
    await do_in_loop(f"undo {label}")


def write(handle: Any, label: str) -> str:
    leave(handle, label)
    return label


def take_back(handle: Any, label: str) -> None:
    write(handle, f"undo {label}")


async def write_in_session(session: Any, label: str) -> str:
    await session.execute(text(_SQL), {"label": label})
    return label


async def take_back_in_session(session: Any, label: str) -> None:
    await write_in_session(session, f"undo {label}")


async def write_in_loop(connection: Any, label: str) -> str:
    await connection.execute("INSERT INTO effects (label) VALUES (%s)", (label,))
    return label


async def take_back_in_loop(connection: Any, label: str) -> None:
    await write_in_loop(connection, f"undo {label}")


def write_by_django(label: str) -> str:
    from django.db import connection

    return write(OfDjango(connection), label)


def take_back_by_django(label: str) -> None:
    write_by_django(f"undo {label}")


def fail(_label: str) -> None:
    raise OSError("no answer")


def outside(name: str, label: str) -> Any:
    return drain.step.options(undo=undo)(name, do, label)


def outside_in_loop(name: str, label: str) -> Any:
    return asyncio.run(drain.async_step.options(undo=undo_in_loop)(name, do_in_loop, label))


def by_sqlalchemy(name: str, label: str) -> Any:
    return drain.step_transaction.options(undo=take_back)(name, write, label)


def by_psycopg(name: str, label: str) -> Any:
    return drain.psycopg_step_transaction.options(undo=take_back)(name, write, label)


def by_async_sqlalchemy(name: str, label: str) -> Any:
    step = drain.async_step_transaction.options(undo=take_back_in_session)
    return asyncio.run(step(name, write_in_session, label))


def by_async_psycopg(name: str, label: str) -> Any:
    step = drain.async_psycopg_step_transaction.options(undo=take_back_in_loop)
    return asyncio.run(step(name, write_in_loop, label))


def by_django(name: str, label: str) -> Any:
    from drain.contrib.django import step_transaction

    use_django_at(current_attempt().database_url)
    return step_transaction.options(undo=take_back_by_django)(name, write_by_django, label)


OUTSIDE: list[Way] = [outside, outside_in_loop]
TRANSACTIONS: list[Way] = [by_sqlalchemy, by_psycopg, by_async_sqlalchemy, by_async_psycopg]
if find_spec("drain.contrib"):
    TRANSACTIONS.append(by_django)


@job(max_attempts=1)
def die(label: str) -> None:
    """Two steps, then a death."""
    outside("reserve", f"{label} reserved")
    by_sqlalchemy("charge", f"{label} charged")
    raise ConnectionError(label)


@job(max_attempts=1)
async def die_in_loop(label: str) -> None:
    await drain.async_step.options(undo=undo_in_loop)("reserve", do_in_loop, f"{label} reserved")
    step = drain.async_step_transaction.options(undo=take_back_in_session)
    await step("charge", write_in_session, f"{label} charged")
    raise ConnectionError(label)


@job(max_attempts=1, isolated=True)
def die_isolated(label: str) -> None:
    die.function(label)


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def finish(label: str) -> None:
    outside("reserve", f"{label} reserved")
    if current_job().attempt == 1:
        raise ConnectionError(label)


def undo_for_a_receipt(label: str) -> object:
    undo(label)
    return object()


async def undo_for_a_receipt_in_loop(label: str) -> object:
    await undo_in_loop(label)
    return object()
