"""Adapter of job-drain for the harness hardbyte/postgresql-job-queue-benchmarking.

An instance stages jobs, runs an enqueuer (`drain run`) and workers (`drain work`), and prints samples as JSON lines.
The workers import this file for its job, and report to their instance through a named pipe.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter, deque
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

import psycopg
import redis

import drain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HERE = Path(__file__).parent
MANIFEST = json.loads((HERE / "adapter.json").read_text(encoding="utf-8"))
QUEUE = "bench"
REDIS_URL = "redis://localhost:16379/0"
WINDOW_SECONDS = 30
# Processes of `drain work`, among which WORKER_COUNT is divided.
MOST_PROCESSES = 4
# The harness allows 5 s from SIGTERM to the exit.
STOP_SECONDS = 4
PIPE = "BENCH_PIPE"
# In the pipe: the delay of a start in milliseconds, or this.
FINISHED = -1.0
DEPTH = (
    "SELECT (SELECT count(*) FROM staged_jobs) + (SELECT count(*) FROM inflight_jobs"
    " WHERE lease_expires_at IS NULL AND next_run_at IS NULL)"
)


def number(name: str, default: int) -> int:
    return int(float(os.environ.get(name) or default))


# --- The workers


@drain.job(name="bench", queue=QUEUE)
async def bench(staged_at: float, padding: str) -> None:  # noqa: ARG001
    report(max(0.0, (time.time() - staged_at) * 1000))
    await asyncio.sleep(number("JOB_WORK_MS", 1) / 1000)


@drain.on_finish
def finished(_job: drain.CurrentJob) -> None:
    report(FINISHED)


def report(value: float) -> None:
    os.write(pipe(), struct.pack("d", value))


@cache
def pipe() -> int:
    # SIGKILL of the instance ends its workers at once, as if the machine had died.
    die_with_parent()
    # Read-write: no write fails after the death of the instance.
    return os.open(os.environ[PIPE], os.O_RDWR)


def die_with_parent() -> None:
    """Make Linux kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


# --- The instance


class Meter:
    """Jobs staged and finished by this instance, and delays of the last `ticks` samples, in three digits."""

    def __init__(self, ticks: int) -> None:
        self.staged, self.finished, self.target_rate = 0, 0, 0.0
        self._delays = deque([Counter[float]()], maxlen=ticks)
        self._lock = Lock()

    def read(self, source: int) -> None:
        """Count reports of workers, forever."""
        while chunk := os.read(source, 65_536):
            values = array("d", chunk)
            delays = [float(f"{value:.3g}") for value in values if value != FINISHED]
            with self._lock:
                self._delays[-1].update(delays)
                self.finished += len(values) - len(delays)

    def percentiles(self, fractions: Sequence[float]) -> Iterator[float]:
        """Compute percentiles of the delays, and start a new tick."""
        with self._lock:
            counts = sum(self._delays, Counter[float]())
            self._delays.append(Counter())
        for fraction in fractions:
            left, found = fraction * counts.total(), 0.0
            for found in sorted(counts):
                left -= counts[found]
                if left <= 0:
                    break
            yield found


class Producer:
    """Stages as many jobs as the harness, the clock or a target depth requests."""

    def __init__(self, meter: Meter, stopping: Event) -> None:
        self._meter, self._stopping = meter, stopping
        self._rate = number("PRODUCER_RATE", 800)
        self._most = max(1, number("PRODUCER_BATCH_MAX", 128))
        self._tick = max(1, number("PRODUCER_BATCH_MS", 25)) / 1000
        self._padding = "x" * max(0, number("JOB_PAYLOAD_BYTES", 256) - 32)
        self._credit, self._credited_at = 0.0, time.monotonic()

    def run(self) -> None:
        """Stage until stopped. A failed batch is staged again."""
        request, count = self._source(), 0
        while not self._stopping.is_set():
            try:
                with closing(connect()) as connection:
                    while not self._stopping.is_set():
                        if count := count or request(connection):
                            self._stage(connection, count)
                            count = 0
            except (psycopg.Error, drain.DrainError) as error:
                print(f"cannot stage: {error}", file=sys.stderr)
                self._stopping.wait(0.2)

    def _stage(self, connection: psycopg.Connection, count: int) -> None:
        now = time.time()
        with connection.transaction():
            drain.stage_many(connection, bench, ((now, self._padding) for _ in range(count)))
        self._meter.staged += count

    def _source(self) -> Callable[[psycopg.Connection], int]:
        if os.environ.get("PRODUCER_MODE") == "depth-target":
            return self._for_depth
        self._meter.target_rate = self._rate
        return self._from_harness if os.environ.get("PRODUCER_PACING") == "harness" else self._from_clock

    def _from_harness(self, _connection: psycopg.Connection) -> int:
        line = sys.stdin.readline()
        # The harness has ended, or has started another instance in place of this one.
        if not line:
            self._stopping.set()
        word, _, count = line.partition(" ")
        return int(count) if word == "ENQUEUE" else 0

    def _from_clock(self, _connection: psycopg.Connection) -> int:
        self._stopping.wait(max(0.0, self._credited_at + self._tick - time.monotonic()))
        with suppress(KeyError, OSError, ValueError):
            self._meter.target_rate = float(Path(os.environ["PRODUCER_RATE_CONTROL_FILE"]).read_text("utf-8"))
        now = time.monotonic()
        self._credit += self._meter.target_rate * (now - self._credited_at)
        self._credited_at = now
        count = min(self._most, int(self._credit))
        self._credit -= count
        return count

    def _for_depth(self, connection: psycopg.Connection) -> int:
        count = min(self._most, number("TARGET_DEPTH", 1000) - depth(connection))
        if count <= 0:
            self._stopping.wait(self._tick)
        return max(0, count)


def main() -> int:
    """Run an instance until SIGTERM; returns the exit code."""
    stopping, every = Event(), max(1, number("SAMPLE_EVERY_S", 5))
    for number_ in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number_, lambda *_: stopping.set())
    os.environ.setdefault("DRAIN_REDIS_URL", REDIS_URL)
    os.environ |= {
        "DRAIN_DATABASE_URL": os.environ["DATABASE_URL"],
        "DRAIN_JOBS": "main",
        "PYTHONPATH": str(HERE),
    }
    prepare()
    with tempfile.TemporaryDirectory() as directory:
        os.environ[PIPE] = f"{directory}/pipe"
        os.mkfifo(os.environ[PIPE])
        source = os.open(os.environ[PIPE], os.O_RDWR)
        programs = start_programs()
        meter = Meter(ticks=max(1, WINDOW_SECONDS // every))
        Thread(target=meter.read, args=[source], daemon=True).start()
        describe()
        Thread(target=Producer(meter, stopping).run, daemon=True).start()
        try:
            return sample_until(stopping, meter, programs, every)
        finally:
            stopping.set()
            stop(programs)


def prepare() -> None:
    """Install the schema. With it, empty Redis: it may hold the queues of a dropped database."""
    with closing(connect()) as connection:
        (is_new,) = connection.execute("SELECT to_regclass('drain_schema') IS NULL").fetchone() or (True,)
    if is_new:
        with closing(redis.Redis.from_url(os.environ["DRAIN_REDIS_URL"])) as client:
            client.flushdb()
    subprocess.run(command("init"), check=True, stdout=sys.stderr)


def start_programs() -> list[subprocess.Popen[bytes]]:
    """Start the enqueuer and the workers."""
    count = max(1, number("WORKER_COUNT", 32))
    most = min(MOST_PROCESSES, os.cpu_count() or 1)
    processes = max(each for each in range(1, most + 1) if count % each == 0)
    sizes = [f"--processes={processes}", f"--concurrency={count // processes}"]
    return [
        # No thread has started yet, so that the function is safe.
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=die_with_parent)  # noqa: PLW1509
        for words in (
            command("run", "--metrics-port=0"),
            command("work", *sizes, "--grace-seconds=2", QUEUE),
        )
    ]


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from drain.__main__ import main; main()", *words]


def stop(programs: list[subprocess.Popen[bytes]]) -> None:
    """End the programs; one that takes too long is killed."""
    deadline = time.monotonic() + STOP_SECONDS
    for program in programs:
        program.terminate()
    for program in programs:
        try:
            program.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            program.kill()


def sample_until(stopping: Event, meter: Meter, programs: list[subprocess.Popen[bytes]], every: int) -> int:
    """Print samples at multiples of `every` seconds. Returns 1 once a program ends unasked, otherwise 0."""
    staged, done, at = 0, 0, time.monotonic()
    while not stopping.wait(every - time.time() % every):
        if ended := [program for program in programs if program.poll() is not None]:
            print(f"exit code {ended[0].returncode}: {ended[0].args!r}", file=sys.stderr)
            return 1
        seconds = time.monotonic() - at
        rates = {
            "enqueue_rate": (meter.staged - staged) / seconds,
            "completion_rate": (meter.finished - done) / seconds,
        }
        staged, done, at = meter.staged, meter.finished, time.monotonic()
        for values, window in ((delays(meter), WINDOW_SECONDS), (rates, seconds), (shared(meter), 0)):
            for metric, value in values.items():
                texts = {"t": now_text(), "subject_kind": "adapter", "subject": "", "metric": metric}
                emit("adapter", **texts, value=value, window_s=window)
    return 0


def delays(meter: Meter) -> dict[str, float]:
    names = ("claim_p50_ms", "claim_p95_ms", "claim_p99_ms")
    return dict(zip(names, meter.percentiles((0.5, 0.95, 0.99)), strict=True))


def shared(meter: Meter) -> dict[str, float]:
    """Metrics of all instances, which the first one reports."""
    if number("BENCH_INSTANCE_ID", 0):
        return {}
    found = {"producer_target_rate": meter.target_rate}
    with suppress(psycopg.Error), closing(connect()) as connection:
        found["queue_depth"] = depth(connection)
    return found


def describe() -> None:
    with closing(connect()) as connection:
        (schema,) = connection.execute("SELECT max(version) FROM drain_schema").fetchone() or (0,)
        names = {"db_name": connection.info.dbname, "schema_version": str(schema)}
    declared = {key: MANIFEST[key] for key in ("event_tables", "event_indexes", "extensions")}
    emit("descriptor", version=version("job-drain"), **names, **declared, started_at=now_text())


def connect() -> psycopg.Connection:
    return psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, connect_timeout=2)


def depth(connection: psycopg.Connection) -> int:
    (count,) = connection.execute(DEPTH).fetchone() or (0,)
    return int(count)


def emit(kind: str, **fields: object) -> None:
    instance = {"system": MANIFEST["system"], "instance_id": number("BENCH_INSTANCE_ID", 0)}
    print(json.dumps({"kind": kind, **instance, **fields}), flush=True)


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    code = main()
    # The producer may be reading standard input, and would keep the interpreter from ending.
    os._exit(code)
