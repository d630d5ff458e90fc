"""`drain work` without queues works on those of its registered jobs, and says which."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from redis import Redis

from drain.__main__ import main
from drain.workers.options import WorkOptions
from tests.helpers import PATIENCE_SECONDS, drain_command, environment, new_enqueuer, query, stage_jobs

pytestmark = pytest.mark.usefixtures("processes")

JOBS = """
from drain.jobs import registry

@registry.job(queue="mail")
def send(number): pass

@registry.job
def other(number): pass
"""


@pytest.fixture
def env(database_url: str, redis_url: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "jobs_of_shop.py").write_text(JOBS)
    (tmp_path / "no_jobs_of_shop.py").write_text("")
    return environment(database_url, redis_url, DRAIN_JOBS="jobs_of_shop", PYTHONPATH=str(tmp_path))


def test_without_queues_a_worker_serves_and_logs_the_registered_ones(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    ids = stage_jobs(database_url, job="jobs_of_shop.send", queue="mail")
    ids += stage_jobs(database_url, job="jobs_of_shop.other")
    ids_elsewhere = stage_jobs(database_url, job="jobs_of_shop.other", queue="elsewhere")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()

    with drain_command("work", "--burst", env=env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        first = command.output.splitlines()[0]

    assert "working on the queues of the registered jobs: default, mail" in first
    assert [id_ for (id_,) in query(database_url, "SELECT id FROM finished_jobs ORDER BY id")] == ids
    assert [id_ for (id_,) in query(database_url, "SELECT id FROM inflight_jobs")] == ids_elsewhere


@pytest.mark.parametrize(
    ("words", "rotates"),
    [([], True), (["mail", "default"], False), (["mail", "default", "--rotate"], True)],
    ids=["unnamed", "named", "named to rotate"],
)
def test_queues_take_turns_unless_they_are_named_in_order(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, words: list[str], rotates: bool
) -> None:
    started: list[WorkOptions] = []
    monkeypatch.setattr(
        "drain.workers.command.work", lambda _settings, options, _look: started.append(options)
    )
    monkeypatch.syspath_prepend(env["PYTHONPATH"])
    assert CliRunner().invoke(main, ["work", *words], env=env, catch_exceptions=False).exit_code == 0
    assert [options.rotates for options in started] == [rotates]


def test_without_queues_and_jobs_the_error_suggests_a_queue(env: dict[str, str]) -> None:
    with drain_command("work", "--burst", env=env | {"DRAIN_JOBS": "no_jobs_of_shop"}) as command:
        assert command.wait(PATIENCE_SECONDS) == 1
        (line,) = command.output.splitlines()

    assert "register no job" in line
    assert "drain work default" in line


def test_an_idle_queue_known_to_rq_is_not_called_unknown(env: dict[str, str], redis_url: str) -> None:
    with Redis.from_url(redis_url) as client:
        client.sadd("rq:queues", "rq:queue:idle")

    with drain_command("work", "idle", "mial", "--burst", env=env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert "'idle'" not in command.output
        assert "queue 'mial' is unknown (idle, or misspelt?)" in command.output


def test_help_describes_the_default_queues() -> None:
    text = " ".join(CliRunner().invoke(main, ["work", "--help"]).stdout.split())

    assert "or of all queues of the registered jobs" in text
