"""absurd: steps, and steps in one transaction with their write on the worker's connection."""

# mypy: ignore-errors
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.peers import stepped, work

if TYPE_CHECKING:
    from collections.abc import Callable

_LEAVE = stepped.EFFECT.format("%s", "%s", "%s")
_UPDATE = work.UPDATE.format(0)


class App:
    """Client and jobs, with two forms of steps."""

    def __init__(self) -> None:
        self.own = psycopg.connect(work.database_url(), autocommit=True)
        self.connection = psycopg.connect(work.database_url(), autocommit=True)
        self.client = Absurd(self.connection, default_max_attempts=1000)
        for name, step in (("stepped", self.step), ("stepped_in_one", self.step_in_one)):
            self.client.register_task(name)(self._stepped(step))
        self.client.register_task("timed")(self._timed)

    def step(self, context: Any, name: str, statement: str, values: tuple[Any, ...]) -> None:
        """Commit the write, then the checkpoint, as documented."""
        context.step(name, lambda: self.own.execute(statement, values).rowcount)

    def step_in_one(self, context: Any, name: str, statement: str, values: tuple[Any, ...]) -> None:
        """Commit write and checkpoint together, through public functions that are not documented for it."""
        handle = context.begin_step(name)
        if not handle.done:
            with self.connection.transaction():
                self.connection.execute(statement, values)
                context.complete_step(handle, 1)

    def _stepped(self, step: Callable[..., None]) -> Callable[..., None]:
        def job(parameters: dict[str, int], context: Any) -> None:
            run = stepped.new_run()
            for number in range(stepped.STEPS):
                step(context, str(number), _LEAVE, (parameters["job"], number, run))
            stepped.ended(parameters["job"])

        return job

    def _timed(self, parameters: dict[str, int], context: Any) -> None:
        steps = parameters["job"]
        stepped.time_each("absurd, step", steps, lambda number: context.step(f"one {number}", lambda: 1))
        stepped.time_each(
            "absurd, begin and complete around an UPDATE",
            steps,
            lambda number: self.step_in_one(context, f"two {number}", _UPDATE, ()),
        )


def prepare() -> None:
    with psycopg.connect(work.database_url(), autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
    App().client.create_queue()


def fill(name: str, jobs: int) -> None:
    app = App()
    for job in range(jobs):
        app.client.spawn(name, {"job": job})


def cost(steps: int) -> None:
    app = App()
    app.client.spawn("timed", {"job": steps})
    app.client.work_batch(claim_timeout=3600)


def run(_slot: str) -> None:
    App().client.start_worker(claim_timeout=stepped.LEASE_SECONDS, poll_interval=0.1)
