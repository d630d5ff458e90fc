"""`drain work` from its start to its stop: it waits for its stores, and says to machines and people how it is."""

import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from drain.embedded import Services
from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, Command, ask, drain_command, end, free_port, wait_until
from tests.worker_processes import Yard, children

pytestmark = pytest.mark.usefixtures("processes")


class Manager:
    """What systemd hears from a unit of `Type=notify`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._socket.setblocking(False)

    def hears(self, line: str) -> bool:
        with suppress(BlockingIOError):
            while True:
                self.heard += self._socket.recv(4096).decode().splitlines()
        return line in self.heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(temporary_directory: str) -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(dir=temporary_directory) as directory:
        made = Manager(f"{directory}/notify")
        yield made
        made.close()


def complaints(command: Command) -> list[str]:
    lines = [json.loads(line) for line in command.output.splitlines()]
    return [line["message"] for line in lines if line["level"] != "info"]


def test_a_worker_is_ready_once_its_stores_become_available(own: Services, manager: Manager) -> None:
    own.redis.stop()
    own.postgres.stop()
    yard, port = Yard(own.database_url, own.redis_url), free_port()
    env = yard.env(NOTIFY_SOCKET=manager.path, DRAIN_WORK_METRICS_PORT=str(port))
    with drain_command("work", "--processes", "2", env=env) as command:
        wait_until(lambda: command.events("down"), PATIENCE_SECONDS)
        assert ask(port, "/healthz")[0] == 200
        assert wait_until(lambda: "cannot be used" in ask(port, "/readyz")[1])
        assert ask(port, "/readyz")[0] == 503
        own.postgres.start()
        wait_until(lambda: "Redis" in ask(port, "/readyz")[1], PATIENCE_SECONDS)
        assert not manager.hears("READY=1")
        assert not command.events("started")
        own.redis.start()
        wait_until(lambda: manager.hears("READY=1"), PATIENCE_SECONDS)
        wait_until(lambda: ask(port, "/readyz")[0] == 200, PATIENCE_SECONDS)
        assert (len(command.events("down")), len(command.events("up"))) == (1, 1)

        ids = yard.pushed(jobs.note, "a") + yard.pushed(jobs.fail, "b")
        yard.wait_for("dead_jobs", ids[1:])
        wait_until(lambda: ended(port) == {"finished": 1, "failed": 1}, PATIENCE_SECONDS)
        wait_until(lambda: manager.hears("STATUS=2 of 2 processes"), PATIENCE_SECONDS)
        assert manager.hears("WATCHDOG=1")
        assert end(command) == 0
    assert manager.hears("STOPPING=1")


def ended(port: int) -> dict[str, int]:
    counts = {"finished": 0, "failed": 0}
    for line in ask(port, "/metrics")[1].splitlines():
        for outcome in counts:
            if line.startswith("drain_work_jobs_total{") and f'outcome="{outcome}"' in line:
                counts[outcome] += int(float(line.split()[-1]))
    return counts


def test_a_worker_waiting_for_its_stores_stops_at_once(database_url: str, tmp_path: Path) -> None:
    yard = Yard(database_url, f"unix://{tmp_path}/none.sock")
    with drain_command("work", env=yard.env()) as command:
        wait_until(lambda: command.events("down"), PATIENCE_SECONDS)
        assert end(command) == 0
        assert len(complaints(command)) == 1


def test_a_missing_schema_ends_the_worker_at_once_with_one_line(
    empty_database_url: str, redis_url: str
) -> None:
    with drain_command("work", env=Yard(empty_database_url, redis_url).env()) as command:
        assert command.wait(PATIENCE_SECONDS) == 1
        assert command.output == "Error: the database has no job-drain schema; run `drain init` first\n"


def test_a_burst_does_not_wait_for_a_store(database_url: str, tmp_path: Path) -> None:
    yard = Yard(database_url, f"unix://{tmp_path}/none.sock")
    with drain_command("work", "--burst", env=yard.env()) as command:
        assert command.wait(PATIENCE_SECONDS) == 1
        assert command.output.startswith("Error: Redis at ")


@contextmanager
def with_a_port(database_url: str, redis_url: str, port: int) -> Iterator[tuple[Command, int]]:
    """A `drain work` with a port, and the id of the process that serves it."""
    jobs.create_effects(database_url)
    yard = Yard(database_url, redis_url)
    with yard.working("--metrics-port", str(port)) as command:
        wait_until(lambda: ask(port, "/readyz")[0] == 200, PATIENCE_SECONDS)
        yield command, min(children(command))


def test_a_process_that_serves_the_port_and_dies_is_replaced(database_url: str, redis_url: str) -> None:
    port = free_port()
    with with_a_port(database_url, redis_url, port) as (command, serving):
        os.kill(serving, signal.SIGKILL)
        wait_until(lambda: serving not in children(command) and len(children(command)) == 2)
        assert ask(port, "/healthz")[0] == 200
        assert end(command) == 0


def test_a_killed_supervisors_port_is_free_while_a_job_still_runs(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    port, file = free_port(), tmp_path / "go"
    with with_a_port(database_url, redis_url, port) as (command, _):
        yard = Yard(database_url, redis_url)
        (job_id,) = yard.pushed(jobs.wait_for_file, str(file))
        wait_until(lambda: len(list(tmp_path.iterdir())) == 1, PATIENCE_SECONDS)
        os.kill(command.pid, signal.SIGKILL)
        wait_until(lambda: is_free(port), PATIENCE_SECONDS)
        assert yard.place(job_id) == "inflight_jobs"
        file.touch()
        yard.wait_for("finished_jobs", [job_id])


def is_free(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def test_each_process_logs_one_line_per_outage_and_recovery(own: Services, tmp_path: Path) -> None:
    yard, file = Yard(own.database_url, own.redis_url), tmp_path / "go"
    with yard.working("--processes", "2", "--prefetch", "1") as command:
        ids = yard.pushed(jobs.wait_for_file, str(file), str(file))
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, PATIENCE_SECONDS)

        def told(event: str, store: str) -> int:
            return len([line for line in command.events(event) if line["store"] == store])

        own.postgres.stop()
        wait_until(lambda: told("down", "postgresql") == 2, PATIENCE_SECONDS)
        own.redis.stop()
        wait_until(lambda: told("down", "redis") == 2, PATIENCE_SECONDS)
        file.touch()
        own.postgres.start()
        wait_until(lambda: told("up", "postgresql") == 2, PATIENCE_SECONDS)
        yard.wait_for("finished_jobs", ids)
        assert told("up", "redis") == 0
        own.redis.start()
        wait_until(lambda: told("up", "redis") == 2, PATIENCE_SECONDS)
        assert end(command) == 0
        assert len(complaints(command)) == 4, complaints(command)
