"""DBOS on psycopg: steps, and datasource transactions, whose record commits with the write."""

# mypy: ignore-errors
from __future__ import annotations

from threading import Event

from dbos import DBOS, DBOSClient, SQLAlchemyDatasource
from sqlalchemy import text

from benchmarks.peers import stepped, work

_QUEUE, _VERSION = "bench", "1"
_URL = work.database_url().replace("postgresql://", "postgresql+psycopg://")
_LEAVE = text(stepped.EFFECT.format(":job", ":number", ":run"))
_UPDATE = text(work.UPDATE.format(0))

datasource = SQLAlchemyDatasource.create(_URL)


@DBOS.step()
def nothing(_number: int) -> int:
    return 1


@datasource.transaction(isolation_level="READ COMMITTED")
def update(_number: int) -> None:
    datasource.sql_session().execute(_UPDATE)


@datasource.transaction(isolation_level="READ COMMITTED")
def leave(job: int, number: int, run: str) -> None:
    datasource.sql_session().execute(_LEAVE, {"job": job, "number": number, "run": run})


@DBOS.workflow(name="stepped")
def stepped_job(job: int) -> None:
    run = stepped.new_run()
    for number in range(stepped.STEPS):
        leave(job, number, run)
    stepped.ended(job)


@DBOS.workflow(name="timed")
def timed(steps: int) -> None:
    for title, act in (("DBOS, step", nothing), ("DBOS, datasource transaction, one UPDATE", update)):
        stepped.time_each(title, steps, act)


def prepare() -> None:
    _launch("prepare")
    DBOS.destroy()


def fill(name: str, jobs: int) -> None:
    client = DBOSClient(system_database_url=_URL)
    for job in range(jobs):
        client.enqueue({"queue_name": _QUEUE, "workflow_name": name, "app_version": _VERSION}, job)
    client.destroy()


def cost(steps: int) -> None:
    _launch("cost")
    timed(steps)
    DBOS.destroy()


def run(slot: str) -> None:
    """Run jobs one by one; a successor has the same id and recovers the jobs of its predecessor."""
    _launch(slot)
    DBOS.register_queue(_QUEUE, worker_concurrency=1, polling_interval_sec=0.1)
    Event().wait()


def _launch(name: str) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": _URL,
            "application_version": _VERSION,
            "executor_id": name,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
