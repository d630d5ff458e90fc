"""The project of the tests with a database of its own: scenes, commands and programs, each in a process of its own."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests import helpers
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    Command,
    drain_command,
    environment,
    query,
    run_program,
    wait_until,
)

MANAGE = """
import sys
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@dataclass(frozen=True)
class Site:
    database_url: str
    redis_url: str
    variables: dict[str, str] = field(default_factory=dict)

    def env(self, **more: str) -> dict[str, str]:
        """Environment of a process; it does not name the database to job-drain."""
        told = {
            "DJANGO_SETTINGS_MODULE": "tests.django_project.settings",
            "PYTHONPATH": str(ROOT),
            "SITE_DATABASE_URL": self.database_url,
        }
        env = environment(self.database_url, self.redis_url, **told | self.variables | more)
        del env["DRAIN_DATABASE_URL"]
        return env

    def manage(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `manage.py` with these words."""
        return run_program(MANAGE, *words, env=self.env(**more), check=False)

    def play(self, scene: str, *words: Any, module: str = "scenes", **more: str) -> Any:
        """Play a scene of a module, and return what it returns."""
        program = helpers.module(f"tests.django_project.{module}")
        return json.loads(run_program(program, scene, json.dumps(words), env=self.env(**more)).stdout)

    @contextmanager
    def running(self) -> Iterator[Command]:
        """`manage.py drain_run` that leads, and `manage.py drain_work`, which is returned."""
        with (
            drain_command("drain_run", "--metrics-port", "0", env=self.env(), program=MANAGE) as enqueuer,
            drain_command("drain_work", env=self.env(), program=MANAGE) as workers,
        ):
            wait_until(lambda: enqueuer.events("leading") or enqueuer.poll() is not None, PATIENCE_SECONDS)
            yield workers

    def notes(self) -> list[str]:
        return [note for (note,) in query(self.database_url, "SELECT note FROM shop_order ORDER BY id")]

    def ended(self, count: int) -> None:
        """Wait until so many jobs are finished or dead."""
        statement = "SELECT (SELECT count(*) FROM finished_jobs) + (SELECT count(*) FROM dead_jobs)"
        wait_until(lambda: query(self.database_url, statement)[0][0] >= count, PATIENCE_SECONDS)
