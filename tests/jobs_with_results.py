"""Jobs of all kinds that keep their results, for worker processes of the tests."""

import asyncio
import os
from typing import Any

# Imported before any process is forked: the main thread and the event loop would import it at the same time.
import sqlalchemy.ext.asyncio  # noqa: F401

from drain.workers import async_transaction, current_job, job, transaction
from tests.jobs_for_tests import leave_effect

MODULE = "tests.jobs_with_results"


@job(result="keep")
def answer(label: str) -> dict[str, str]:
    return {"label": label}


@job
def discard(label: str) -> dict[str, str]:
    return {"label": label}


@job(result="keep")
def note_and_answer(label: str) -> dict[str, str]:
    leave_effect(os.environ["DRAIN_DATABASE_URL"], label)
    return {"label": label}


@job(result="keep")
async def answer_in_loop(label: str) -> dict[str, str]:
    await asyncio.sleep(0.001)
    return {"label": label}


@job(result="keep", isolated=True)
def answer_in_child(label: str) -> dict[str, str]:
    return {"label": label}


@job(result="keep")
def answer_in_transaction(label: str) -> None:
    with transaction():
        current_job().set_result({"label": label})


@job(result="keep", commit="grouped")
def answer_in_group(label: str) -> None:
    with transaction():
        current_job().set_result({"label": label})


@job(result="keep", commit="grouped")
async def answer_in_async_transaction(label: str) -> None:
    async with async_transaction():
        current_job().set_result({"label": label})


@job(result="keep", isolated=True)
def answer_in_childs_transaction(label: str) -> None:
    with transaction():
        current_job().set_result({"label": label})


@job(result="keep", max_attempts=1)
def answer_too_much(label: str) -> str:
    return label * 70_000


@job(result="keep")
def gather(label: str) -> list[Any]:
    return [label, *current_job().results.items()]


@job(result="keep")
async def gather_in_loop(label: str) -> list[Any]:
    return [label, *(await current_job().aresults()).items()]


@job(result="keep", isolated=True)
def gather_in_child(label: str) -> list[Any]:
    return gather(label)


@job(result="keep")
def gather_in_transaction(label: str) -> None:
    with transaction():
        current_job().set_result(gather(label))


@job(result="keep")
async def gather_in_async_transaction(label: str) -> None:
    async with async_transaction():
        current_job().set_result(await gather_in_loop(label))


GATHERING = (gather, gather_in_loop, gather_in_child, gather_in_transaction, gather_in_async_transaction)

ALL = (
    *(answer, answer_in_loop, answer_in_child, answer_in_transaction, answer_in_group),
    *(answer_in_async_transaction, answer_in_childs_transaction),
)
