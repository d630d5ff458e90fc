"""One run, from the first process to the verdict."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

from programs.processes import Processes

from drain.audit import Report, audit
from drain.config import Settings
from drain.database import postgres
from drain.database.postgres import Connection
from drain.wire import Producer
from tests.interleavings import history
from tests.interleavings.history import Notes
from tests.soak import survived, tables, verdict
from tests.soak.chaos import Chaos, coverage
from tests.soak.faults import Faults
from tests.soak.fleet import Fleet, journals, programs
from tests.soak.plan import OPERATOR, POSTGRES, PRODUCERS, RQ_WORKERS, plan
from tests.soak.report import Result
from tests.soak.servers import Servers

Say = Callable[[str], None]

# Small, so that faults come in between of two batches.
_BATCH_SIZE = 20
_TICK_SECONDS = 0.02
_LINE_SECONDS = 5.0
_LOOK_SECONDS = 0.2
_STANDSTILL_SECONDS = 90.0
# Under faults anything may be late.
_LONG_SECONDS = 3600
# What the leader sees to within a time, which a leader that stands still does not: checked once the faults are over.
_IN_TIME = ("unique", "ticks")


def soak(seed: int, seconds: float, directory: Path, say: Say) -> Result:
    """Let everything work under faults for so long, then until nothing is left, and judge.

    Args:
        seed: Of the faults and of the applications.
        seconds: How long the faults go on.
        directory: For logs and data.
        say: Shows a line.
    """
    directory = directory.absolute()
    with Servers(directory) as started:
        with closing(_connect(started)) as connection:
            tables.create(connection)
            connection.execute(history.LOG)
        database_url, redis_url = started.urls
        variables = {
            "DRAIN_DATABASE_URL": database_url,
            "DRAIN_REDIS_URL": redis_url,
            "DRAIN_JOBS": "tests.soak.jobs",
            "DRAIN_BATCH_SIZE": str(_BATCH_SIZE),
        }
        with Processes(directory, variables) as processes:
            starts = programs(processes, redis_url, directory, seed)
            fleet = Fleet(processes, starts, say)
            chaos = Chaos(plan(seed, seconds), Faults(fleet, started))
            return _Run(started, fleet, chaos, directory, say).run(seed, seconds)


class _Run:
    """The parts of one run, all of which are there."""

    def __init__(self, servers: Servers, fleet: Fleet, chaos: Chaos, directory: Path, say: Say) -> None:
        self._servers = servers
        self._fleet = fleet
        self._chaos = chaos
        self._directory = directory
        self._say = say
        self._began = monotonic()
        self._line_at = _LINE_SECONDS
        self._breaches: list[str] = []

    def run(self, seed: int, seconds: float) -> Result:
        """From the first fault to the verdict."""
        try:
            while self._seconds() < seconds:
                self._chaos.act(self._seconds())
                self._tick()
        finally:
            self._chaos.end()
        for name in (*PRODUCERS, OPERATOR):
            self._fleet.kill(name)
        with closing(_connect(self._servers)) as connection:
            tables.calm(connection)
        lasted = self._seconds()
        self._drain()
        drained = self._seconds() - lasted
        with closing(_connect(self._servers)) as connection:
            self._breaches += verdict.lines(self._audit(connection).breaches)
            past = history.read(connection, Notes(may_list_twice=True, may_claim_again=True))
            self._breaches += [f"history: {problem}" for problem in past.problems]
            told = verdict.read(journals(self._directory))
            return Result(
                seed=seed,
                seconds=lasted,
                drained_seconds=drained,
                jobs=tables.counts(connection),
                faults=self._chaos.done,
                survived=survived.count(connection, self._directory),
                coverage=coverage(self._chaos.spans, past.letters),
                verdict=verdict.judge(connection, told, self._breaches, self._ended()),
            )

    def _seconds(self) -> float:
        return monotonic() - self._began

    def _tick(self) -> None:
        self._fleet.supervise()
        if self._seconds() >= self._line_at and self._chaos.is_there(POSTGRES):
            self._left()
            self._look()
        sleep(_TICK_SECONDS)

    def _left(self) -> int:
        """How many jobs are still to be worked; now and then shown as well."""
        with closing(_connect(self._servers)) as connection:
            counts = tables.counts(connection)
        if self._seconds() >= self._line_at:
            self._line_at = self._seconds() + _LINE_SECONDS
            where = ", ".join(f"{number:,} {name}" for name, number in counts.items())
            self._say(f"{self._seconds():6.1f} s: {where}; {sum(self._chaos.done.values())} faults")
        return counts["staged"] + counts["inflight"]

    def _look(self) -> None:
        """What must hold in every snapshot of the tables, in the middle of it all."""
        with closing(_connect(self._servers)) as connection:
            found = audit(connection, overdue_seconds=_LONG_SECONDS, patience_seconds=0)
        always = (breach for breach in found.breaches if breach.check not in _IN_TIME)
        self._breaches += [f"after {self._seconds():.0f} s: {line}" for line in verdict.lines(always)]

    def _drain(self) -> None:
        """Return once nothing is left, or when nothing has ended for a while."""
        self._say(f"{self._seconds():6.1f} s: the faults are over, waiting until nothing is left")
        fewest, until = self._left(), self._seconds() + _STANDSTILL_SECONDS
        while fewest and self._seconds() < until:
            self._fleet.supervise()
            sleep(_LOOK_SECONDS)
            left = self._left()
            if left < fewest:
                fewest, until = left, self._seconds() + _STANDSTILL_SECONDS

    def _audit(self, connection: Connection) -> Report:
        settings = Settings.from_texts({"database_url": self._servers.database_url})
        with closing(Producer(self._servers.redis.url, settings.namespace)) as redis:
            return audit(connection, redis)

    def _ended(self) -> dict[str, int]:
        # RQ's own worker gives up when Redis goes away in the wrong moment.
        ours = [name for name in self._fleet.names if name not in RQ_WORKERS]
        ended = {f"{name} ended": self._fleet.ended[name] for name in ours}
        return ended | {f"{name} did not end": self._fleet.hung[name] for name in ours}


def _connect(servers: Servers) -> Connection:
    return postgres.connect(servers.database_url, "soak")
