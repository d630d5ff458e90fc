"""Real programs tell hooks and commands of an outage once, and that it is over once; no hook harms them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drain.database import schema
from drain.embedded import Services, services
from tests import jobs_in_batches as jobs
from tests.helpers import (
    ROOT,
    ask,
    drain_command,
    end,
    environment,
    free_port,
    leading,
    pushed_jobs,
    stage_jobs,
    wait_until,
)
from tests.worker_processes import Yard, children

HOOKS = """
import json, os, time
import drain

def note(change):
    with open(os.environ["TOLD"], "a") as file:
        file.write(json.dumps(change.as_texts()) + "\\n")

@drain.on_unhealthy
def raises(change):
    raise RuntimeError("this hook fails")

drain.on_unhealthy(note)
drain.on_recovery(note)

@drain.on_unhealthy
def hangs(change):
    time.sleep(3600)
"""
QUICK = {"DRAIN_HEALTH_GRACE": "0.5", "DRAIN_HEALTH_RECOVERY": "0.5"}


@pytest.fixture
def own(temporary_directory: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """Servers that a test may stop."""
    monkeypatch.setattr(tempfile, "tempdir", temporary_directory)
    with services(durable=False) as running:
        schema.install(running.database_url)
        jobs.create_effects(running.database_url)
        yield running


class Told:
    """What hooks and commands have written, and the environment in which they do."""

    def __init__(self, directory: Path) -> None:
        self._hooks, self._commands = directory / "hooks", directory / "commands"
        (directory / "hooks_of_health.py").write_text(HOOKS)
        note = f'echo "$DRAIN_HEALTH_EVENT $DRAIN_HEALTH_WHAT" >> {self._commands}'
        self.environment = QUICK | {
            "TOLD": str(self._hooks),
            "PYTHONPATH": f"{directory}:{ROOT}",
            "DRAIN_ON_UNHEALTHY": note,
            "DRAIN_ON_RECOVERY": note,
        }

    def hooks(self) -> list[dict[str, str]]:
        lines = self._hooks.read_text().splitlines() if self._hooks.exists() else []
        return [json.loads(line) for line in lines]

    def commands(self) -> list[str]:
        return self._commands.read_text().splitlines() if self._commands.exists() else []


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_the_enqueuer_reports_an_outage_once_even_with_broken_hooks(own: Services, told: Told) -> None:
    port = free_port()
    env = environment(own.database_url, own.redis_url) | told.environment
    # The hook that hangs is waited for, so that the end of the outage is told when it is left behind.
    env |= {"SITE_SECONDS": json.dumps({"drain.service.callbacks.HOOK_SECONDS": 0.2})}
    env["PYTHONPATH"] += f":{ROOT / 'tests' / 'impatient'}"
    with leading(env, "--metrics-port", str(port), "--hooks", "hooks_of_health") as process:
        own.redis.stop()
        ids = stage_jobs(own.database_url, 3)
        wait_until(lambda: len(told.commands()) == 1 and len(told.hooks()) == 1)
        assert ask(port, "/readyz")[0] == 503
        assert ask(port, "/healthz")[0] == 200
        own.redis.start()
        wait_until(lambda: len(told.commands()) == 2 and len(told.hooks()) == 2)
        wait_until(lambda: ask(port, "/readyz")[0] == 200)
        wait_until(lambda: set(pushed_jobs(own.redis_url)) == set(ids))
        assert told.commands() == ["unhealthy redis", "recovery redis"]
        first, second = told.hooks()
        assert "Redis at" in first["reason"]
        assert {name: first[name] for name in ("event", "what", "process", "recovered_at")} == {
            "event": "unhealthy",
            "what": "redis",
            "process": "enqueuer",
            "recovered_at": "",
        }
        assert (second["event"], second["since"]) == ("recovery", first["since"])
        assert second["recovered_at"] > first["since"]
        assert [line["what"] for line in process.events("unhealthy")] == ["redis"]
        assert [line["what"] for line in process.events("recovered")] == ["redis"]
        assert len(process.events("health_hook_failed")) == 2
        assert end(process) == 0


def test_an_outage_within_the_grace_period_is_not_reported(own: Services, told: Told) -> None:
    port = free_port()
    env = environment(own.database_url, own.redis_url) | told.environment | {"DRAIN_HEALTH_GRACE": "3600"}
    with leading(env, "--metrics-port", str(port)) as process:
        own.redis.stop()
        wait_until(lambda: process.events("down"))
        assert ask(port, "/readyz") == (200, "ok\n")
        own.redis.start()
        wait_until(lambda: len(process.events("up")) == 2)
        assert told.commands() == []


def test_workers_report_an_outage_once_even_with_a_hanging_hook(own: Services, told: Told) -> None:
    port = free_port()
    yard = Yard(own.database_url, own.redis_url)
    more = told.environment | {"DRAIN_WORK_METRICS_PORT": str(port)}
    more |= {"SITE_SECONDS": json.dumps({"drain.workers.supervisor.callbacks._CHILD_SECONDS": 1})}
    more["PYTHONPATH"] += f":{ROOT / 'tests' / 'impatient'}"
    modules = ("--jobs", "tests.jobs_in_batches,hooks_of_health")
    with drain_command("work", "default", *modules, env=yard.env(**more)) as command:
        wait_until(lambda: command.events("started"))
        wait_until(lambda: ask(port, "/readyz")[0] == 200)
        own.redis.stop()
        wait_until(lambda: len(told.commands()) == 1 and len(told.hooks()) == 1)
        assert ask(port, "/readyz") == (503, "no worker process reaches both PostgreSQL and Redis\n")
        own.redis.start()
        wait_until(lambda: len(told.commands()) == 2 and len(told.hooks()) == 2)
        wait_until(lambda: ask(port, "/readyz")[0] == 200)
        assert told.commands() == ["unhealthy stores", "recovery stores"]
        assert [line["process"] for line in told.hooks()] == ["workers", "workers"]
        # That of the hook that hung is gone: the worker process, and the one of the port, are left.
        wait_until(lambda: len(children(command)) == 2)
        assert [line["level"] for line in command.events("unhealthy")] == ["error"]
        assert any("were killed" in line["message"] for line in command.events("health_hook_failed"))
        ids = yard.pushed(jobs.note, "a")
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0


def test_a_hooks_module_that_does_not_import_is_reported_in_one_line(own: Services) -> None:
    env = environment(own.database_url, own.redis_url)
    with drain_command("run", "--metrics-port", "0", "--hooks", "no.such.module", env=env) as process:
        assert process.wait(60) == 1
        assert process.output.startswith("Error: cannot import the module 'no.such.module' of DRAIN_HOOKS: ")
        assert len(process.output.splitlines()) == 1
