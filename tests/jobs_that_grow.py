"""Members of batches that add members, and callbacks that count them, for worker processes of the tests."""

import asyncio
import os
from pathlib import Path

import sqlalchemy

import drain
from drain import current_job, job
from drain.workers import async_transaction, transaction
from tests.jobs_in_batches import note_after_file, note_in_transaction, wait_for_file

MODULE = "tests.jobs_that_grow"
SOON = 0.01
# Jobs that a job of each level stages.
FANOUT = 5

_LEAVE = sqlalchemy.text("INSERT INTO effects (label, worker) VALUES (:label, :worker)")


@job(max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def grow(label: str, levels: int, gate: str) -> None:
    """Add members, in the transaction that finishes this one."""
    wait_for_file.function(gate)
    with transaction() as session:
        session.execute(_LEAVE, {"label": label, "worker": os.getpid()})
        for number in range(FANOUT) if levels else ():
            arguments = [f"{label}.{number}", levels - 1, gate]
            drain.stage(session, grow, arguments, flow=current_job().flow)


@job(max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
async def grow_in_loop(label: str, gate: str) -> None:
    async with async_transaction() as session:
        await session.execute(_LEAVE, {"label": label, "worker": os.getpid()})
        await drain.astage(session, note_after_file, [gate], flow=await current_job().aflow())
    await asyncio.sleep(0)


@job(max_attempts=1)
def die_until(label: str, path: str) -> None:
    if not Path(path).exists():
        raise ValueError(label)
    note_in_transaction.function(label)


@job(max_attempts=3, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def count(event: str) -> None:
    """Leave the event with the numbers of members."""
    with transaction() as session:
        found = drain.flow_progress(session, current_job().flow)
        assert found is not None
        label = f"{event}: {found.total} members, {found.finished} finished, {found.dead} dead"
        session.execute(_LEAVE, {"label": label, "worker": os.getpid()})
