"""`manage.py drain dev`: a worker that reloads, on the database of Django."""

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.django_project.site import Site
from tests.helpers import PATIENCE_SECONDS, drain_command, query, wait_until

# As `python backend/manage.py`: modules are looked for in the directory of that file first.
MANAGE = """
import sys
sys.path.insert(0, "backend")
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""
APPS = ["django.contrib.auth", "django.contrib.contenttypes", "drain.contrib.django", "letters"]
TASKS = """
from {tasks} import task

@task
def greet() -> None:
    print({greeting!r})
"""


def write(project: Path, greeting: str) -> None:
    tasks = "django.tasks" if find_spec("django.tasks") else "django_tasks"
    (project / "backend" / "letters" / "tasks.py").write_text(TASKS.format(tasks=tasks, greeting=greeting))


@pytest.mark.parametrize("redis", ["that of the settings", "its own"])
def test_the_worker_reloads_on_the_database_of_django(site: Site, tmp_path: Path, redis: str) -> None:
    (tmp_path / "backend" / "letters").mkdir(parents=True)
    (tmp_path / "backend" / "letters" / "__init__.py").touch()
    write(tmp_path, "good morning")
    apps = [*APPS, *([] if find_spec("django.tasks") else ["django_tasks"])]
    env = site.env(SITE_SETTINGS=json.dumps({"INSTALLED_APPS": apps}))
    if redis == "its own":
        del env["DRAIN_REDIS_URL"]
    with drain_command("drain", "dev", env=env, cwd=tmp_path, program=MANAGE) as dev:

        def wait_for(text: str) -> None:
            wait_until(lambda: text in dev.output or dev.poll() is not None, 2 * PATIENCE_SECONDS)
            assert text in dev.output

        wait_for("works on default")
        query(site.database_url, "INSERT INTO staged_jobs (job_name) VALUES ('letters.tasks.greet')")
        wait_for("worker   | good morning\n")
        write(tmp_path, "good evening")
        wait_for("worker   | backend/letters/tasks.py changed: the worker starts again\n")
        query(site.database_url, "INSERT INTO staged_jobs (job_name) VALUES ('letters.tasks.greet')")
        wait_for("worker   | good evening\n")
        site.ended(2)
        os.kill(dev.pid, signal.SIGINT)
        assert dev.wait(PATIENCE_SECONDS) == 0
        assert "export DRAIN_DATABASE_URL" not in dev.output
        assert ("export DRAIN_REDIS_URL" in dev.output) == (redis == "its own")
        assert "python -c" not in dev.output
