"""`rq worker --config drain.rq_settings`: what each job needs is imported once, by the process that forks."""

import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue
from rq.job import JobStatus

from tests import jobs_of_rq_settings as jobs
from tests.helpers import (
    ROOT,
    RQ_PATIENCE_SECONDS,
    RQ_PROGRAM,
    environment,
    ids_in,
    pushed,
    stage_jobs,
)
from tests.jobs_for_tests import create_effects
from tests.worker_processes import Yard

pytestmark = pytest.mark.every_python


@pytest.fixture
def yard(processes: None, database_url: str, redis_url: str) -> Yard:
    create_effects(database_url)
    return Yard(database_url, redis_url)


SETTINGS = ("--config", "drain.rq_settings")


def rq_worker(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Let an unmodified `rq worker` empty the queue `mail`; by default it has our settings."""
    return subprocess.run(
        [RQ_PROGRAM, "worker", "--burst", *(words or SETTINGS), "mail"],
        env={"DRAIN_JOBS": jobs.MODULE, "PYTHONPATH": str(ROOT)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RQ_PATIENCE_SECONDS,
        check=False,
    )


def test_the_jobs_module_is_imported_once_in_the_parent_process(yard: Yard) -> None:
    ids = yard.pushed(jobs.tell, "first", "second")
    result = rq_worker(environment(yard.database_url, yard.redis_url))
    assert result.returncode == 0, result.stdout
    assert yard.all_are("finished_jobs", ids)
    told = [effect.split() for effect in yard.effects()]
    assert [label for label, *_ in told] == ["first", "second"]
    imported_in = {parent for _, parent, *_ in told}
    forked_by = {parent for _, _, _, parent, *_ in told}
    ran_in = {process for _, _, process, *_ in told}
    assert imported_in == forked_by
    assert len(imported_in) == 1
    assert len(ran_in) == 2


def test_a_job_without_a_session_never_imports_sqlalchemy(yard: Yard) -> None:
    yard.pushed(jobs.tell, "only")
    rq_worker(environment(yard.database_url, yard.redis_url))
    (told,) = yard.effects()
    assert told.endswith("without SQLAlchemy")


@pytest.mark.parametrize("preloaded", [True, False])
def test_session_imports_happen_before_the_fork_or_on_demand(yard: Yard, *, preloaded: bool) -> None:
    yard.pushed(jobs.tell, "only")
    words = SETTINGS if preloaded else ("--url", yard.redis_url)
    env = environment(yard.database_url, yard.redis_url, DRAIN_JOBS=f"sqlalchemy,{jobs.MODULE}")
    result = rq_worker(env, *words)
    assert result.returncode == 0, result.stdout
    (told,) = yard.effects()
    assert told.endswith(f"{'with' if preloaded else 'without'} sessions, with SQLAlchemy")


@pytest.mark.parametrize("variable", ["DRAIN_REDIS_URL", "REDIS_URL"])
def test_the_redis_url_comes_from_the_environment(yard: Yard, variable: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with Redis.from_url(yard.redis_url) as client:
        Queue("mail", connection=client).enqueue(jobs.plain, str(mark))
    env = environment(yard.database_url, "")
    result = rq_worker(env | {variable: yard.redis_url})
    assert result.returncode == 0, result.stdout
    assert mark.exists()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"DRAIN_DATABASE_URL": ""}, "no database URL: set DRAIN_DATABASE_URL"),
        ({"DRAIN_JOBS": ""}, "no job modules: set DRAIN_JOBS"),
        ({"DRAIN_JOBS": "tests.nowhere"}, "the job module 'tests.nowhere' cannot be imported"),
        ({"DRAIN_REDIS_URL": "http://nowhere"}, "DRAIN_REDIS_URL must start with redis://"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(wrong: dict[str, str], says: str) -> None:
    result = rq_worker(environment("postgresql://nowhere/shop", "redis://nowhere") | wrong)
    assert result.returncode == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"drain.rq_settings: {says}")


@pytest.mark.parametrize("installed", [True, False])
def test_a_tracked_job_can_be_fetched_with_or_without_the_entry_point(yard: Yard, *, installed: bool) -> None:
    yard.pushed(jobs.tell, "never")
    (rq_id,) = pushed(yard.redis_url, "mail")
    program = f"""
import sys
if not {installed}: sys.modules["drain.workers"] = None
from redis import Redis
from rq.job import Job
job = Job.fetch({rq_id!r}, connection=Redis.from_url({yard.redis_url!r}))
print(job.get_status().value, job.func_name, "drain.workers.entry" in sys.modules)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["queued", "drain.rq.tell", str(installed)]


def test_a_delivery_with_the_entry_point_of_an_older_version_runs(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "workers.py").touch()
    ids = yard.pushed(jobs.tell, "first", "second")
    with Redis.from_url(yard.redis_url) as client:
        for rq_id in pushed(yard.redis_url, "mail"):
            data = client.hget(f"rq:job:{rq_id}", "data")
            assert isinstance(data, bytes)
            name = b"\x8c\x0d" + b"drain.rq.tell"
            assert name in data
            client.hset(f"rq:job:{rq_id}", "data", data.replace(name, b"\x8c\x15workers.entry.execute"))
    env = environment(yard.database_url, yard.redis_url, PYTHONPATH=f"{tmp_path}:{ROOT}")
    result = rq_worker(env, "--url", yard.redis_url)
    assert yard.all_are("finished_jobs", ids), result.stdout


def test_an_application_module_named_workers_breaks_neither_kind_of_job(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text("def plain(): return 'done'\n")
    (tmp_path / "jobs_beside.py").write_text("from drain import job\n@job\ndef send(_number): pass\n")
    with Redis.from_url(yard.redis_url) as client:
        queue = Queue("mail", connection=client)
        plain = [queue.enqueue("workers.plain")]
        ids = stage_jobs(yard.database_url, job="jobs_beside.send", queue="mail")
        yard.push()
        plain.append(queue.enqueue("workers.plain"))
        theirs_first = {"DRAIN_JOBS": "jobs_beside", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
        env = environment(yard.database_url, yard.redis_url, **theirs_first)
        result = rq_worker(env, "--url", yard.redis_url)
        assert {job.get_status() for job in plain} == {JobStatus.FINISHED}, result.stdout
    assert ids_in(yard.database_url, "finished_jobs") == ids, result.stdout
