"""`drain slo list` and `drain status`: which share of the jobs has started in time lately."""

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from drain import Flow
from drain.__main__ import main
from drain.contrib.slo import prometheus
from drain.contrib.slo.compliance import Lately
from drain.contrib.slo.declared import Slo
from drain.jobs import registry
from drain.jobs.objectives import Objective
from drain.workers import job
from tests import jobs_measured
from tests.database.test_explain import System
from tests.helpers import PATIENCE_SECONDS, drain_command, environment, free_port, query, wait_until
from tests.process.test_work_metrics import measuring, scrape
from tests.worker_processes import Yard

# Jobs of a name that finished within the last minutes, and waited for so many seconds before.
FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token, superseded_by)
SELECT nextval('staged_jobs_id_seq'), %s, '[]', '{}', 'mail', 0, due, due, due, due + make_interval(secs => %s), now(),
    %s, 1, %s FROM generate_series(1, %s), LATERAL (SELECT now() - interval '10 minutes' AS due) AS times
"""
NIGHTLY = Slo("flow", "nightly import", Objective(90, 600, "finish"), None)
FILE = '[mail]\nslo = "90% start within 5s"\n'


@pytest.fixture
def system(database_url: str, redis_url: str) -> System:
    return System(database_url, redis_url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "queues.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def finished(
    system: System, count: int, *, after: float, name: str = "m.f", attempts: int = 1, by: int | None = None
) -> None:
    system.execute(FINISHED, name, after, attempts, by, count)


def drain(system: System, *args: str) -> Result:
    result = CliRunner().invoke(main, args, env=system.env | {"DRAIN_JOBS": ""})
    assert result.exit_code == 0, result.output
    return result


def listed(system: System, file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        drain(system, "slo", "list", "--queue-file", str(file), "--json").stdout
    )
    return found


def test_the_share_and_the_burn_rate_cover_the_last_hour(system: System, file: Path) -> None:
    finished(system, 15, after=1)
    finished(system, 5, after=6)
    (found,) = listed(system, file)
    assert found == {
        "kind": "queue",
        "name": "mail",
        "queue": "mail",
        "slo": "90% start within 5s",
        "percent": 90,
        "seconds": 5,
        "started": 20,
        "met": 15,
        "waiting_late": 0,
        "share_percent": 75,
        "burn_rate": pytest.approx(2.5),
    }


def test_retried_superseded_and_old_jobs_do_not_count(system: System, file: Path) -> None:
    finished(system, 1, after=6)
    system.execute("UPDATE finished_jobs SET finished_at = now() - interval '61 minutes'")
    finished(system, 1, after=6, attempts=2)
    finished(system, 1, after=6, by=1)
    (found,) = listed(system, file)
    assert (found["started"], found["share_percent"], found["burn_rate"]) == (0, None, None)


def test_jobs_that_wait_and_are_late_count_as_missed(system: System, file: Path) -> None:
    finished(system, 8, after=1)
    # Due for a minute.
    system.stage()
    system.execute(
        "UPDATE inflight_jobs SET (scheduled_at, staged_at) = (SELECT now() - interval '1 minute', now() - interval "
        "'1 minute') WHERE id = %s",
        system.in_flight(),
    )
    # Due now, claimed, of another queue, and scheduled for later.
    system.in_flight()
    system.in_flight(claimed=True)
    system.stage(queue="letters")
    system.execute(
        "INSERT INTO staged_jobs (job_name, queue, scheduled_at) VALUES ('m.f', 'mail', now() + interval '1 hour')"
    )
    (found,) = listed(system, file)
    assert (found["started"], found["waiting_late"], found["share_percent"]) == (8, 2, 80)


def test_the_objective_of_a_job_counts_only_jobs_of_that_name(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    job(name="m.f", queue="mail", slo="99% start within 5s")(lambda: None)
    finished(system, 3, after=1)
    finished(system, 9, after=60, name="m.g")
    system.stage(job_name="m.g")
    (found,) = json.loads(drain(system, "slo", "list", "--json").stdout)
    assert (found["kind"], found["name"], found["started"], found["met"]) == ("job", "m.f", 3, 3)
    assert found["waiting_late"] == 0


def test_each_objective_is_printed_on_one_readable_line(system: System, file: Path) -> None:
    assert "slo queue mail: 90% start within 5s; no job in the last hour\n" in drain(
        system, "slo", "list", "--queue-file", str(file)
    ).output.replace("\n ", " ")
    finished(system, 3, after=1)
    system.stage()
    for command in (["slo", "list"], ["status"]):
        text = drain(system, *command, "--queue-file", str(file)).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert (
            "slo queue mail: 90% start within 5s; 75% of 4 jobs (1 still waiting) in the last hour, burn 2.5"
            in " ".join(text.split())
        )


def test_the_status_has_objectives_only_where_they_are_declared(system: System, file: Path) -> None:
    assert "slo" not in drain(system, "status").stdout
    assert json.loads(drain(system, "status", "--json").stdout)["slos"] == []
    status = json.loads(drain(system, "status", "--json", "--queue-file", str(file)).stdout)
    assert status["slos"] == listed(system, file)


# By name, minutes since staging, and number of flows.
FLOWS = """
INSERT INTO flows (id, name, staged_at, staged_by)
SELECT nextval('staged_jobs_id_seq'), %s, now() - make_interval(mins => %s), 'app' FROM generate_series(1, %s)
RETURNING id
"""
ENDED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token)
SELECT id, 'end', '[]', '{}', 'mail', 0, staged_at, staged_at, ended.at, ended.at, ended.at, 0, 1
FROM flows, LATERAL (SELECT now() - make_interval(mins => %s) AS at) AS ended WHERE id = ANY (%s::bigint[])
"""
CANCELLED = """
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, died_at, attempts,
    reason, explanation)
SELECT id, 'end', '[]', '{}', 'mail', 0, staged_at, staged_at, ended.at, 0, 'cancelled', ''
FROM flows, LATERAL (SELECT now() - make_interval(mins => %s) AS at) AS ended WHERE id = ANY (%s::bigint[])
"""
FLOW_FILE = '[flow."nightly import"]\nslo = "90% finish within 10m"\n'


def flows(
    system: System,
    count: int,
    *,
    staged: float,
    ended: float | None = None,
    statement: str = ENDED,
    name: str = "nightly import",
) -> None:
    ids = [id_ for (id_,) in query(system.env["DRAIN_DATABASE_URL"], FLOWS, name, staged, count)]
    if ended is not None:
        query(system.env["DRAIN_DATABASE_URL"], statement, ended, ids)


@pytest.fixture
def flow_file(file: Path) -> Path:
    file.write_text(FLOW_FILE, encoding="utf-8")
    return file


def test_a_flow_counts_at_its_end_or_once_its_time_is_over(system: System, flow_file: Path) -> None:
    # In time; late; unfinished but not late; late, whether it runs, failed, or was undone or cancelled.
    flows(system, 12, staged=20, ended=11)
    flows(system, 1, staged=30, ended=5)
    flows(system, 1, staged=9)
    flows(system, 2, staged=11)
    flows(system, 1, staged=30, ended=15, statement=CANCELLED)
    # Cancelled in time; of another name; in time, late and forgotten over an hour ago.
    flows(system, 1, staged=30, ended=25, statement=CANCELLED)
    flows(system, 1, staged=30, name="another")
    flows(system, 1, staged=69, ended=61)
    flows(system, 1, staged=71, ended=5)
    flows(system, 1, staged=71)
    (found,) = listed(system, flow_file)
    assert found == {
        "kind": "flow",
        "name": "nightly import",
        "queue": None,
        "slo": "90% finish within 10m",
        "percent": 90,
        "seconds": 600,
        "finished": 13,
        "met": 12,
        "unfinished_late": 3,
        "share_percent": 75,
        "burn_rate": pytest.approx(2.5),
    }


def test_a_flows_objective_is_printed_like_a_queues(system: System, flow_file: Path) -> None:
    for command in (["slo", "list"], ["status"]):
        args = [*command, "--queue-file", str(flow_file)]
        text = "slo flow nightly import: 90% finish within 10m; no flow in the last hour"
        assert text in " ".join(drain(system, *args).stdout.split())
    flows(system, 3, staged=20, ended=11)
    flows(system, 1, staged=20)
    for command in (["slo", "list"], ["status"]):
        args = [*command, "--queue-file", str(flow_file)]
        text = "90% finish within 10m; 75% of 4 flows (1 unfinished) in the last hour, burn 2.5"
        assert text in " ".join(drain(system, *args).stdout.split())


@pytest.mark.usefixtures("processes")
def test_the_generated_rules_query_series_that_the_leader_exports(
    database_url: str, redis_url: str, flow_file: Path
) -> None:
    port = free_port()
    args = ["run", "--metrics-port", str(port), "--queue-file", str(flow_file)]
    asked = re.findall(r"(drain_\w+)\{(flow=[^}]*)\}\[", prometheus.rules([NIGHTLY]))
    assert {name for name, _ in asked} == {
        *("drain_flow_seconds_bucket", "drain_flow_seconds_count", "drain_late_flows_total")
    }
    with drain_command(*args, env=environment(database_url, redis_url)) as command:
        wait_until(lambda: command.events("leading"), PATIENCE_SECONDS)
        with psycopg.connect(database_url) as connection:
            Flow("nightly import").stage(connection)
        wait_until(
            lambda: 'drain_flow_seconds_count{flow="nightly import"} 1.0' in scrape(port), PATIENCE_SECONDS
        )
        text = scrape(port)
    for name, selector in asked:
        value = 0 if name == "drain_late_flows_total" else 1
        labels = re.sub("'([^']*)'", r'"\1"', selector)
        assert f"\n{name}{{{labels}}} {value:.1f}\n" in text


@pytest.mark.parametrize("text", ['[flow.a]\nslo = "soon"', None])
def test_a_leader_does_not_start_with_an_invalid_or_missing_file(
    system: System, file: Path, text: str | None
) -> None:
    file.unlink()
    if text is not None:
        file.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(main, ["run", "--once", "--queue-file", str(file)], env=system.env)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert str(file) in result.stderr


def test_an_empty_list_explains_how_to_declare_an_objective(system: System) -> None:
    assert 'no SLOs; declare one with @job(slo="99% start within 5s")' in drain(system, "slo", "list").stderr


@pytest.mark.parametrize(("met", "shown"), [(99_999, "99.999%"), (100_000, "100%")])
def test_no_rounding_hides_a_late_job(met: int, shown: str) -> None:
    from drain.contrib.slo.report import texts

    slo = Slo("queue", "mail", Objective(99, 5), "mail")
    (text,) = texts([Lately(slo, 100_000, met, 0)])
    assert f"; {shown} of 100,000 jobs in" in text.plain


@pytest.mark.parametrize("kind", ["queue", "job"])
def test_the_generated_rules_query_series_that_workers_export(yard: Yard, kind: Any) -> None:
    note = jobs_measured.note
    slo = Slo(kind, "default" if kind == "queue" else note.job_name, Objective(90, 60), "default")
    yard.stage(note, "late")
    query(
        yard.database_url,
        "UPDATE staged_jobs SET (staged_at, scheduled_at) = (earlier.at, earlier.at) "
        "FROM (SELECT now() - interval '1 hour' AS at) AS earlier",
    )
    yard.stage(note, "1", "2", "3")
    yard.push()
    asked = re.findall(r"(drain_work_wait_seconds_\w+)\{([^}]*)\}", prometheus.rules([slo]))
    assert len(asked) > 4
    with measuring(yard) as (port, _):
        port.wait_for(4, "drain_work_wait_seconds_count")
        for name, selector in asked:
            labels = dict(re.findall(r"(\w+)='([^']*)'", selector))
            assert port.value(name, **labels) == (3 if "le" in labels else 4)
