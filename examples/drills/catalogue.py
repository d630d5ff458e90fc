"""Catalogue of the drills, and their runner: `drain drill`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Protocol

from programs.processes import ended_by_sigterm

from drain.audit import audit
from drain.config import Settings
from drain.embedded import Services
from drain.errors import DrainError
from drain.wire import Producer
from drills import (
    flush_redis,
    kill_enqueuer,
    kill_worker,
    late_commit,
    lease_race,
    restart_postgres,
    zombie_leader,
)
from drills.environment import environment, scenario
from drills.report import Report, Result
from drills.scenario import DidNotHappenError, Scenario
from drills.verdict import Evidence, Verdict

# Exit code after Ctrl-C.
_INTERRUPTED = 130


class Drill(Protocol):
    """Interface of a module that is a drill."""

    SUMMARY: str

    def run(self, scenario: Scenario) -> Verdict:
        """Bring about the race, and judge its end.

        Raises:
            DidNotHappenError: An event that the drill waited for did not happen.
            DrainError: A server or a process ended.
        """


DRILLS: dict[str, Drill] = {
    "lease-race": lease_race,
    "kill-enqueuer": kill_enqueuer,
    "kill-worker": kill_worker,
    "flush-redis": flush_redis,
    "restart-postgres": restart_postgres,
    "zombie-leader": zombie_leader,
    "late-commit": late_commit,
}


def main(names: Sequence[str], *, as_json: bool) -> int:
    """Run these drills, one after the other; a table at the end shows all of them if there are several.

    Returns:
        The exit code: 0; 1 if a drill was not proven, not survived, or could not be run; 130 after Ctrl-C.
    """
    report = Report(as_json=as_json)
    # psycopg warns of connections that a drill cuts on purpose.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    try:
        with ended_by_sigterm(), environment() as servers:
            results = [_run(servers, name, report) for name in names]
    except DrainError as error:
        report.error(str(error))
        return 1
    except KeyboardInterrupt:
        report.error("interrupted; all processes have ended")
        return _INTERRUPTED
    if len(results) > 1:
        report.summarise(results)
    return 0 if all(result.verdict.passed for result in results) else 1


def _run(servers: Services, name: str, report: Report) -> Result:
    drill = DRILLS[name]
    report.begin(name, drill.SUMMARY)
    try:
        with scenario(servers, name, report.record) as started:
            verdict = drill.run(started)
            verdict = replace(verdict, survival=[*verdict.survival, _audited(started)])
    except DidNotHappenError as error:
        report.record("did_not_happen", what=str(error))
        verdict = Verdict(str(error), [Evidence("it took place", str(error), holds=False)], [])
    result = Result(name, drill.SUMMARY, verdict, report.seconds())
    report.conclude(result)
    return result


def _audited(finished: Scenario) -> Evidence:
    """Audit the database and Redis as the drill has left them."""
    settings = Settings.from_texts({"database_url": finished.database_url})
    with closing(Producer(finished.servers.redis_url, settings.namespace)) as redis:
        found = audit(finished.connection, redis)
    breaches = "; ".join(f"{breach.count} {breach.explanation}" for breach in found.breaches)
    return Evidence("drain audit: everything that must hold does", breaches or "no breach", holds=found.ok)
