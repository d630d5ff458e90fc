"""`python -m benchmarks.quiet_alarms --seconds 3600`: an installation without faults raises no alarm.

A leader, a standby and a worker of two processes do light work under a real Prometheus with the alarms of
deploy/prometheus. Halfway through, each is restarted by SIGTERM, as in a deployment. `--faster 10` divides all times of
the rules, so that windows of minutes pass within seconds; a shorter window detects a shorter gap. The exit code is 1 if
any alarm fired, or if no job finished.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, sleep, time

import psycopg

from benchmarks import prometheus, quiet_jobs
from benchmarks.processes import command
from benchmarks.prometheus import Prometheus
from drain import schedule, stage
from drain.database import schema
from drain.embedded import Services, services
from drain.embedded.addresses import free_port

_MODULE = "benchmarks.quiet_jobs"
# Interval between rounds of staging.
_ROUND_SECONDS = 1.0
_FAILS_EACH = 20
_PATIENCE_SECONDS = 120.0


class _Programs:
    """Two enqueuers and a worker; each keeps its port across restarts."""

    def __init__(self, started: Services) -> None:
        self._started = started
        self._ports = {name: free_port() for name in ("first", "second", "worker")}
        self._running = {name: self._start(name) for name in self._ports}

    @property
    def targets(self) -> dict[str, list[str]]:
        at = {name: f"127.0.0.1:{port}" for name, port in self._ports.items()}
        return {"drain-run": [at["first"], at["second"]], "drain-work": [at["worker"]]}

    def deploy(self) -> None:
        """Restart each program in turn, and wait until it is ready."""
        for name, port in self._ports.items():
            self._running.pop(name).close()
            self._running[name] = self._start(name)
            _until_ready(port)

    def close(self) -> None:
        for stack in self._running.values():
            stack.close()

    def _start(self, name: str) -> ExitStack:
        words = ["work", "--processes", "2"] if name == "worker" else ["run"]
        port = ["--metrics-port", str(self._ports[name])]
        stack = ExitStack()
        stack.enter_context(command(self._started, *words, *port, jobs=_MODULE))
        return stack


def _until_ready(port: int) -> None:
    deadline = monotonic() + _PATIENCE_SECONDS
    while monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return
        sleep(0.1)
    raise TimeoutError(f"nothing is ready on port {port}")


def main() -> int:
    """Run the soak, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quiet_alarms", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--faster", type=float, default=1, help="divides all times of the rules")
    given = parser.parse_args()
    if prometheus.binary() is None:
        print("Prometheus is not installed", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quiet-")))
        started = stack.enter_context(services(durable=False))
        schema.install(started.database_url)
        programs = _Programs(started)
        stack.callback(programs.close)
        port = free_port()
        watch = prometheus.prometheus(directory, port, programs.targets, faster=given.faster)
        server = stack.enter_context(watch)
        server.wait_for_targets(3)
        return _soak(started, programs, server, given.seconds, given.faster)


def _soak(started: Services, programs: _Programs, server: Prometheus, seconds: float, faster: float) -> int:
    """Stage for `seconds`, report the alarms that fired, and return the exit code."""
    with psycopg.connect(started.database_url, autocommit=True) as connection:
        schedule(connection, "minutely", quiet_jobs.send, cron="* * * * *", args=[0])
        _until_quiet(connection, server)
        began, number = time(), 0
        half, end = monotonic() + seconds / 2, monotonic() + seconds
        deployed = False
        while monotonic() < end:
            number = _stage(connection, number)
            if not deployed and monotonic() > half:
                deployed = True
                programs.deploy()
            sleep(_ROUND_SECONDS)
    return _conclude(server, began, number, faster)


def _until_quiet(connection: psycopg.Connection, server: Prometheus) -> None:
    """Stage until no alarm is active: at its start, Prometheus has not yet scraped a leader."""
    deadline = monotonic() + _PATIENCE_SECONDS
    while server.firing() | server.pending():
        if monotonic() > deadline:
            raise TimeoutError(f"alarms before the soak: {server.firing() | server.pending()}")
        _stage(connection, 0)
        sleep(_ROUND_SECONDS)


def _stage(connection: psycopg.Connection, number: int) -> int:
    with connection.transaction():
        for each in range(number, number + 4):
            stage(connection, quiet_jobs.send, [each], tag="shop.order")
        stage(connection, quiet_jobs.report, [number], tag="shop.report")
        if number % _FAILS_EACH == 0:
            stage(connection, quiet_jobs.fail_once, [number])
    return number + 4


def _conclude(server: Prometheus, began: float, number: int, faster: float) -> int:
    step = prometheus.seconds("15s") / faster
    found = {"firing": set[str](), "pending": set[str]()}
    for series in server.query_range("ALERTS", began, time(), max(step, (time() - began) / 10_000)):
        found[series["metric"]["alertstate"]].add(series["metric"]["alertname"])
    minutes = (time() - began) / 60
    window = f"{round(60 * minutes)}s"
    finished = server.query(f"sum(increase(drain_work_finished_jobs_total[{window}]))")
    finished_jobs = float(finished[0]["value"][1]) if finished else 0.0
    print(
        f"{minutes:.1f} minutes, all times of the rules divided by {faster:g}, one deployment halfway through"
    )
    print(f"staged in {number // 4} rounds; finished: about {finished_jobs:.0f} jobs")
    print(f"fired: {', '.join(sorted(found['firing'])) or 'none'}")
    print(f"pending at some point: {', '.join(sorted(found['pending'])) or 'none'}")
    print(f"alarms that are quiet for lack of data: {', '.join(_blind(server, window)) or 'none'}")
    return 1 if found["firing"] or not finished_jobs else 0


def _blind(server: Prometheus, window: str) -> list[str]:
    """Find the alarms without any data for their metrics."""
    return [
        rule["alert"]
        for rule in prometheus.alerts()
        if not any(
            server.query(f"count_over_time({name}[{window}])")
            for name in set(re.findall(r"\bdrain_\w+|\bup\b", rule["expr"]))
        )
    ]


if __name__ == "__main__":
    sys.exit(main())
