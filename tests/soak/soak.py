"""One run, from the first process to the verdict."""

from __future__ import annotations

import os
from collections import Counter
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
from tests.soak import flat, survived, tables, verdict
from tests.soak.chaos import Chaos, coverage
from tests.soak.faults import Faults
from tests.soak.fleet import Fleet, journals, programs
from tests.soak.plan import POSTGRES, REDIS, RQ_WORKERS, names, plan
from tests.soak.report import Result
from tests.soak.samples import Samples
from tests.soak.servers import Servers
from tests.soak.verdict import Verdict

Say = Callable[[str], None]

# Small, so that faults come in between of two batches.
_BATCH_SIZE = 20
_TICK_SECONDS = 0.02
_LINE_SECONDS = 5.0
# A run has this many lines and samples at most.
_MOST_SAMPLES = 1000
# Jobs are judged and forgotten after each window; a run has twelve or more.
_WINDOW_SECONDS = (60.0, 600.0)
_FEWEST_WINDOWS = 12
_LOOK_SECONDS = 0.2
_STANDSTILL_SECONDS = 90.0
# Under faults anything may be late.
_LONG_SECONDS = 3600
# What the leader sees to within a time, which a leader that stands still does not: checked once the faults are over.
_IN_TIME = ("unique", "ticks")


def soak(seed: int, seconds: float, directory: Path, say: Say, load: float = 1) -> Result:
    """Let everything work under faults for so long, in windows; judge each once nothing is left.

    Ends early after a window that does not hold.

    Args:
        seed: Of the faults and of the applications.
        seconds: How long the faults go on, with the ends of windows between them.
        directory: For logs and data.
        say: Shows a line.
        load: 0.5: applications pause for twice as long.
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
            "SOAK_LOAD": str(load),
        }
        with Processes(directory, variables) as processes:
            starts = programs(processes, redis_url, directory, seed)
            fleet = Fleet(processes, starts, say)
            chaos = Chaos(plan(seed), Faults(fleet, started))
            return _Run(started, fleet, chaos, directory, say).run(seed, seconds, load)


class _Run:
    """The parts of one run, all of which are there."""

    def __init__(self, servers: Servers, fleet: Fleet, chaos: Chaos, directory: Path, say: Say) -> None:
        self._servers = servers
        self._fleet = fleet
        self._chaos = chaos
        self._directory = directory
        self._say = say
        self._samples = Samples(directory, servers, fleet)
        self._began = monotonic()
        self._look_at = self._line_at = _LINE_SECONDS
        self._line_seconds = _LINE_SECONDS
        self._calm_seconds = 0.0
        self._jobs: Counter[str] = Counter()
        self._survived: Counter[str] = Counter()
        self._coverage: dict[str, Counter[str]] = {name: Counter() for name in names()}
        self._breaches: list[str] = []

    def run(self, seed: int, seconds: float, load: float) -> Result:
        """From the first fault to the verdict."""
        self._line_seconds = max(_LINE_SECONDS, seconds / _MOST_SAMPLES)
        shortest, longest = _WINDOW_SECONDS
        window = min(longest, max(shortest, seconds / _FEWEST_WINDOWS))
        numbers = 0
        while True:
            numbers += 1
            found = self._window(min(self._seconds() + window, seconds))
            if not found.holds or self._seconds() >= seconds:
                break
        under_faults = self._seconds() - self._calm_seconds
        return Result(
            seed=seed,
            load=load,
            seconds=under_faults,
            windows=numbers,
            drained_seconds=self._calm_seconds,
            jobs=self._jobs,
            faults=self._chaos.done,
            survived=self._survived,
            coverage=self._coverage,
            verdict=found,
            series=(series := flat.series(self._samples.read())),
            growth=flat.growth(series, self._seconds()),
        )

    def _window(self, until: float) -> Verdict:
        """Let faults come until then; judge all jobs once nothing is left, and forget them if all is well."""
        try:
            while self._seconds() < until:
                self._chaos.act(self._seconds() - self._calm_seconds)
                self._tick()
        finally:
            self._chaos.end()
        calm_since = self._seconds()
        with closing(_connect(self._servers)) as connection, tables.closed_gate(connection):
            tables.calm(connection)
            self._drain()
            found = self._judge(connection)
            if found.holds:
                self._forget(connection)
        self._calm_seconds += self._seconds() - calm_since
        return found

    def _judge(self, connection: Connection) -> Verdict:
        self._breaches += verdict.lines(self._audit(connection).breaches)
        past = history.read(connection, Notes(may_list_twice=True, may_claim_again=True))
        self._breaches += [f"history: {problem}" for problem in past.problems]
        self._jobs.update(tables.counts(connection))
        self._survived.update(survived.count(connection, self._directory))
        for name, letters in coverage(self._chaos.spans, past.letters).items():
            self._coverage[name].update(letters)
        told = verdict.read(journals(self._directory))
        return verdict.judge(connection, told, self._breaches, self._ended())

    def _forget(self, connection: Connection) -> None:
        """What holds is forgotten, so that a run of any length takes the same memory and disk."""
        tables.forget(connection)
        tables.reclaim(connection)
        tables.hold(connection)
        self._chaos.spans.clear()
        for journal in journals(self._directory):
            os.truncate(journal, 0)
        survived.shorten_logs(self._directory)
        self._servers.shorten_logs()

    def _seconds(self) -> float:
        return monotonic() - self._began

    def _tick(self) -> None:
        self._fleet.supervise()
        if self._seconds() >= self._look_at and self._chaos.is_there(POSTGRES):
            self._look_at = self._seconds() + _LINE_SECONDS
            self._look()
        is_time = self._seconds() >= self._line_at
        if is_time and self._chaos.is_there(POSTGRES) and self._chaos.is_there(REDIS):
            self._left()
        sleep(_TICK_SECONDS)

    def _left(self) -> int:
        """How many jobs are still to be worked; now and then shows it, and takes a sample."""
        with closing(_connect(self._servers)) as connection:
            counts = tables.counts(connection)
        if self._seconds() >= self._line_at:
            self._line_at = self._seconds() + self._line_seconds
            where = ", ".join(f"{number:,} {name}" for name, number in counts.items())
            self._say(f"{self._seconds():6.1f} s: {where}; {sum(self._chaos.done.values())} faults")
            self._samples.take(self._seconds())
        return counts["staged"] + counts["inflight"]

    def _look(self) -> None:
        """What must hold in every snapshot of the tables, in the middle of it all."""
        with closing(_connect(self._servers)) as connection:
            found = audit(connection, overdue_seconds=_LONG_SECONDS, patience_seconds=0)
        always = (breach for breach in found.breaches if breach.check not in _IN_TIME)
        self._breaches += [f"after {self._seconds():.0f} s: {line}" for line in verdict.lines(always)]

    def _drain(self) -> None:
        """Return once nothing is left, or when nothing has ended for a while."""
        self._say(f"{self._seconds():6.1f} s: no faults, waiting until nothing is left")
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
