"""Id, name and attempt of a job in each log record of its thread or task, whatever formatter an application has."""

import json
import os
import re
import subprocess
from typing import Any

import pytest

from tests import jobs_in_batches, jobs_that_report as jobs
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    RQ_PATIENCE_SECONDS,
    RQ_PROGRAM,
    Command,
    end,
    leading,
    wait_until,
)
from tests.worker_processes import Yard


def written(output: str) -> set[str]:
    """Lines of the application's own formatter."""
    return set(re.findall(r"^SHOP (.*)$", output, re.MULTILINE))


def lines(command: Command, message: str) -> list[dict[str, Any]]:
    """Lines of `drain work` with this message."""
    whole = command.output.rpartition("\n")[0]
    found = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    return [line for line in found if line["message"] == message]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (jobs.report, ()),
        (jobs.report, ("--threads", "2")),
        (jobs.report_async, ()),
        (jobs.report_isolated, ()),
    ],
    ids=["main thread", "threads", "event loop", "isolated"],
)
def test_each_record_of_a_job_names_it_in_every_format(yard: Yard, job: Any, words: tuple[str, ...]) -> None:
    ids = yard.pushed(job, "a", "b")
    yard.say("go")
    with yard.working(*words, DRAIN_JOBS=jobs.MODULE) as command:
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
        name = f"{jobs.MODULE}.{job.function.__name__}"
        assert {
            (line["job_id"], line["job_name"], line["attempt"]) for line in lines(command, "reported")
        } == {(job_id, name, 1) for job_id in ids}
        (imported,) = lines(command, "imported")
        assert not {"job_id", "job_name", "attempt"} & imported.keys()
        assert written(command.output) == {
            "None|None|None|imported",
            *(f"{job_id}|{name}|1|reported" for job_id in ids),
        }
        # The workers' own lines are made outside of jobs, and name the jobs that they are about.
        assert all("attempt" not in line for line in command.events("job_finished"))


def test_an_applications_own_fields_win_and_a_retry_has_its_own_attempt(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs.report_in_first_attempt, "a")
    for word in ("fail", "report", "go"):
        yard.say(word)
    with leading(yard.env()), yard.working(DRAIN_JOBS=jobs.MODULE) as command:
        yard.wait_for("finished_jobs", [job_id])
        wait_until(lambda: lines(command, "failing"), PATIENCE_SECONDS)
        assert end(command) == 0
        (line,) = lines(command, "failing")
        name = f"{jobs.MODULE}.report_in_first_attempt"
        assert (line["job_id"], line["job_name"]) == ("its own", name)
        assert f"its own|{name}|None|failing" in written(command.output)
        # The worker's own line about the attempt.
        (failed,) = command.events("job_failed")
        assert failed["job_id"] == job_id


@pytest.mark.parametrize("config", [(), ("--config", "drain.rq_settings")], ids=["plain", "rq_settings"])
def test_a_child_of_rq_worker_names_the_job_too(yard: Yard, config: tuple[str, ...]) -> None:
    (job_id,) = yard.pushed(jobs.report, "a")
    yard.say("go")
    env = {"DRAIN_DATABASE_URL": yard.database_url, "DRAIN_JOBS": jobs.MODULE, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [RQ_PROGRAM, "worker", "--url", yard.redis_url, *config, "--burst", "default"],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=RQ_PATIENCE_SECONDS,
        check=True,
    )
    assert written(done.stderr) == {
        "None|None|None|imported",
        f"{job_id}|{jobs.MODULE}.report|1|reported",
    }


def test_a_verbose_worker_logs_the_traceback_of_a_failure(
    yard: Yard,
) -> None:
    yard.pushed(jobs_in_batches.fail, "paper")
    with yard.working("--verbose") as command:
        (event,) = wait_until(lambda: command.events("job_dead"))
    assert "in fail\n" in event["traceback"]
    assert event["traceback"].endswith("ValueError: no paper\n")
