"""The load of a queue is read from real tables, and `/scale` and the gauge say how many workers it needs."""

import json
from contextlib import closing
from typing import Any

import psycopg
import pytest

from drain.contrib.scaling import answers, load
from drain.contrib.scaling.answers import Scale
from drain.contrib.scaling.load import Load, read_all
from drain.contrib.scaling.wanted import wanted
from drain.database import postgres
from drain.enqueuer.enqueuer import SESSION
from drain.read import waiting_by_cause
from tests.database.test_explain import System
from tests.database.test_query_plans import (
    MANY,
    many_inflight_rows,
    many_staged_rows,
    many_waiting_rows,
    scans,
)
from tests.helpers import (
    ask,
    drain_command,
    environment,
    free_port,
    stage_jobs,
    wait_until,
)
from tests.hostility import Place

__all__ = ["many_inflight_rows", "many_staged_rows", "many_waiting_rows"]

# Jobs of the queue `mail` that one worker ran one after the other, each for so many seconds, the last one just now.
RAN = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, finished_by, attempts, fencing_token)
SELECT nextval('staged_jobs_id_seq'), 'm.f', '[]', '{}', 'mail', 0, due, due, due,
    at - make_interval(secs => %(seconds)s), at, %(worker)s, 1, 1
FROM generate_series(0, %(count)s::integer - 1) AS number, LATERAL (
    SELECT clock_timestamp() - make_interval(secs => number * %(every)s::float8) AS at,
        clock_timestamp() - make_interval(secs => %(due)s::float8) AS due) AS times
"""


@pytest.fixture
def system(database_url: str, redis_url: str) -> System:
    return System(database_url, redis_url)


@pytest.fixture
def scale(database_url: str) -> Scale:
    return Scale(database_url)


def ran(
    system: System,
    count: int,
    seconds: float,
    *,
    every: float | None = None,
    due: float = 30.0,
    worker: str = "web-1:1:a",
) -> None:
    given = {"count": count, "seconds": seconds, "every": seconds if every is None else every}
    with psycopg.connect(system.database_url, autocommit=True) as connection:
        connection.execute(RAN, given | {"due": due, "worker": worker})


def loaded(system: System, queue: str = "mail") -> Load:
    with closing(postgres.connect(system.database_url, "test")) as connection:
        found = load.read(connection, queue)
    assert found is not None
    return found


def answered(scale: Scale, path: str = "mail", query: str = "") -> dict[str, Any]:
    status, body = scale.answer(path, query)
    found: dict[str, Any] = json.loads(body)
    return found | {"status": status}


def stage_now(system: System, count: int, queue: str = "mail") -> None:
    stage_jobs(system.database_url, count, queue=queue)


def test_the_wanted_workers_follow_from_the_backlog_and_run_time(system: System, scale: Scale) -> None:
    ran(system, 10, 2.0, due=600)
    for _ in range(30):
        system.stage()
    system.in_flight()
    system.execute(
        "UPDATE inflight_jobs SET (scheduled_at, staged_at) = (SELECT now() - interval '1 h', now() - interval '1 h')"
    )
    found = loaded(system)
    assert found.waiting == {"list_full": 30, "queued": 1}
    assert found.mean_seconds == pytest.approx(2.0)
    assert found.busy_seconds == pytest.approx(2.0, abs=0.01)

    answer = answered(scale)
    # They have been due for a minute: nothing has arrived since.
    assert (answer["backlog"], answer["arrivals_per_second"]) == (31, 0)
    assert (answer["status"], answer["wanted"]) == (200, 3)
    assert answered(scale, query="within=10s")["wanted"] == 7
    assert answered(scale, query="within=10s&concurrency=4")["wanted"] == 2


def test_arrivals_of_the_last_minute_count_in_every_state(system: System) -> None:
    ran(system, 30, 0.01, due=30)
    ran(system, 30, 0.01, due=90)
    stage_now(system, 12)
    system.in_flight()
    system.in_flight(claimed=True)
    system.in_flight(claimed=True)
    stage_now(system, 100, queue="letters")
    assert loaded(system).arrivals == pytest.approx((30 + 12 + 1 + 2) / 60)


def test_the_arrival_rate_of_a_fast_queue_uses_its_latest_jobs(system: System) -> None:
    # A hundred of them in the last twenty seconds, all of which came due in the last minute.
    ran(system, 300, 0.2, due=30)
    assert loaded(system).arrivals == pytest.approx(5, rel=0.15)


def test_a_bulk_staged_just_now_counts_over_a_minute_not_a_second(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_now(system, 600)
    assert loaded(system).arrivals == pytest.approx(10, rel=0.01)
    # As if there were more than are counted: then the latest ones are all that is known.
    monkeypatch.setattr(load, "MOST", 600)
    assert 10 < loaded(system).arrivals <= load._NEWEST


def test_run_times_of_jobs_claimed_together_exclude_their_shared_wait(system: System) -> None:
    # Each was claimed a second before its end, and one ended every ten milliseconds.
    ran(system, 40, 1.0, every=0.01, worker="a")
    ran(system, 40, 1.0, every=0.01, worker="b")
    found = loaded(system)
    assert found.mean_seconds == pytest.approx(1.0)
    assert found.busy_seconds == pytest.approx(2 * 1.39 / 80, rel=0.2)


def test_superseded_jobs_do_not_count_as_run(system: System) -> None:
    ran(system, 5, 1.0)
    system.execute("UPDATE finished_jobs SET superseded_by = 1")
    found = loaded(system)
    assert (found.mean_seconds, found.busy_seconds) == (None, None)


def test_long_running_jobs_keep_their_workers(system: System, scale: Scale) -> None:
    for number in range(3):
        job_id = system.in_flight(claimed=True)
        system.execute(
            "UPDATE inflight_jobs SET claimed_by = %s, claimed_at = now() - interval '10 minutes', "
            "staged_at = now() - interval '11 minutes', scheduled_at = now() - interval '11 minutes' WHERE id = %s",
            f"web-{number}:1:a",
            job_id,
        )
    answer = answered(scale)
    assert (answer["wanted"], answer["kept"], answer["running"]) == (3, 3, 3)
    # Nothing has finished: the running ones say how long a job takes.
    assert answer["run_seconds"] == pytest.approx(600, abs=60)


def test_rules_and_pauses_bound_the_number(system: System, scale: Scale) -> None:
    ran(system, 10, 2.0, due=600)
    system.rules(running=2)
    for _ in range(60):
        system.stage()
    answer = answered(scale)
    assert (answer["wanted"], answer["bound"], answer["backlog"]) == (2, "running", 60)
    system.pause(queue="mail")
    later = answered(Scale(system.database_url))
    assert (later["wanted"], later["bound"], later["backlog"]) == (0, "pause", 0)


@pytest.mark.parametrize(
    ("path", "query", "status", "error"),
    [
        ("unknown", "", 404, "queue unknown has no rules and has never had a job"),
        ("", "", 404, "name a queue"),
        ("a/b", "", 404, "name a queue"),
        ("%00", "", 404, "name a queue"),
        (
            "mail",
            "within=soon",
            400,
            "within must be a time such as 30s, 10m or 1h, from 1s to 1d, not 'soon'",
        ),
        ("mail", "within=", 400, "within must be a time such as"),
        ("mail", "within=0s", 400, "within must be a time such as"),
        ("mail", "within=2d", 400, "within must be a time such as"),
        ("mail", "within", 400, "malformed query"),
        ("mail", "within=1s&within=2s", 400, "given twice"),
        ("mail", "in=30s", 400, "unknown parameter 'in': use within or concurrency"),
        ("mail", "concurrency=0", 400, "concurrency must be a whole number from 1 to 100000, not '0'"),
        ("mail", "concurrency=1e3", 400, "concurrency must be a whole number"),
        ("mail", "&".join(f"a{number}=1" for number in range(20)), 400, "malformed query"),
    ],
)
def test_an_invalid_question_gets_an_explanation(
    scale: Scale, path: str, query: str, status: int, error: str
) -> None:
    found = answered(scale, path, query)
    assert (set(found), found["status"]) == ({"error", "status"}, status)
    assert error in found["error"]


@pytest.mark.parametrize("make", ["finished long ago", "dead", "scheduled", "rules"])
def test_a_queue_that_is_idle_is_known_and_needs_no_worker(system: System, scale: Scale, make: str) -> None:
    if make == "finished long ago":
        ran(system, 1, 1.0)
        system.execute("UPDATE finished_jobs SET finished_at = now() - interval '40 days'")
    elif make == "dead":
        system.execute(
            "INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
            "reason, explanation) VALUES (1, 'm.f', '[]', '{}', 'mail', 0, now(), now(), 'failed', '')"
        )
    elif make == "scheduled":
        system.execute(
            "INSERT INTO staged_jobs (job_name, queue, scheduled_at) VALUES ('m.f', 'mail', now() + interval '1 h')"
        )
    else:
        system.rules(running=2)
    answer = answered(scale)
    assert (answer["status"], answer["wanted"]) == (200, 0)


def test_an_unreachable_database_gives_a_503_with_one_line() -> None:
    found = answered(Scale("postgresql://nobody:secret@127.0.0.1:1/shop"))
    assert found["status"] == 503
    assert "PostgreSQL at" in found["error"]
    assert "secret" not in found["error"]


def test_answers_are_cached_for_two_seconds(system: System) -> None:
    now = [100.0]
    scale = Scale(system.database_url, clock=lambda: now[0])
    stage_now(system, 1)
    assert answered(scale)["backlog"] == 1
    stage_now(system, 1)
    assert answered(scale, query="within=5s")["backlog"] == 1
    now[0] += answers._READ_SECONDS
    assert answered(scale)["backlog"] == 2


def test_the_leader_answers_from_its_measurement_as_long_as_that_is_fresh(system: System) -> None:
    now = [100.0]
    scale = Scale(system.database_url, clock=lambda: now[0])
    stage_now(system, 1)
    scale.measured([Load("mail", {"due": 7})])
    now[0] += answers._MEASURED_SECONDS - 1
    assert answered(scale)["backlog"] == 7
    now[0] += 1
    assert answered(scale)["backlog"] == 1


@pytest.mark.usefixtures("processes")
def test_leader_and_standby_answer_but_only_the_leader_exports_the_gauge(
    system: System, redis_url: str
) -> None:
    env = environment(system.database_url, redis_url)
    first, second = free_port(), free_port()
    system.rules(running=40)
    ran(system, 10, 60.0, due=600)
    stage_now(system, 100)
    with drain_command("run", "--metrics-port", str(first), env=env) as leader:
        wait_until(lambda: leader.events("leading"))
        wait_until(lambda: 'drain_wanted_workers{queue="mail"} 40.0' in ask(first, "/metrics")[1])
        with drain_command("run", "--metrics-port", str(second), env=env) as standby:
            wait_until(lambda: standby.events("up"))
            for port in (first, second):
                status, text = ask(port, "/scale/mail?within=20s")
                assert (status, json.loads(text)["wanted"]) == (200, 40)
            assert ask(second, "/scale/nobody")[0] == 404
            assert ask(second, "/scale")[0] == 404
            assert "drain_wanted_workers{" not in ask(second, "/metrics")[1]


def test_the_enqueuer_role_may_read_the_load(place: Place) -> None:
    stage_jobs(place.url_of("application"), 3, queue="mail")
    with closing(postgres.connect(place.url_of("enqueuer"), "test")) as connection:
        found = load.read(connection, "mail")
        assert found is not None
        assert wanted(found).backlog == 3
    assert answered(Scale(place.url_of("enqueuer")))["status"] == 200
    refused = answered(Scale(place.url_of("application")))
    assert refused["status"] == 503
    assert "run `drain roles --apply`" in refused["error"]


@pytest.fixture
def parameters() -> dict[str, Any]:
    return {"queues": ["a", "b", "default"], "kinds": [0, 1, 2, 3], "window": 60.0}


def test_the_latest_finished_jobs_come_from_an_index(
    many_waiting_rows: str, parameters: dict[str, Any]
) -> None:
    found = scans(many_waiting_rows, load._FINISHED, parameters)
    assert found.keys() <= {"finished_jobs_latest", "finished_jobs_other"}
    assert sum(found.values()) <= 2 * load._SAMPLE + MANY // 100


def test_waiting_jobs_are_read_from_indexes(many_staged_rows: str, parameters: dict[str, Any]) -> None:
    found = scans(many_staged_rows, load._WAITING, parameters)
    assert sum(found.values()) <= 3 * (load._NEWEST + 1)


def test_the_jobs_in_flight_come_from_indexes(many_inflight_rows: str, parameters: dict[str, Any]) -> None:
    assert sum(scans(many_inflight_rows, load._WAITING, parameters).values()) <= 2 * (load._NEWEST + 1)
    assert scans(many_inflight_rows, load._RUNNING, parameters) == {"inflight_jobs_claimed": 200}


def test_many_queues_are_measured_in_a_few_statements(system: System) -> None:
    for queue in ("mail", "letters", "calls"):
        stage_now(system, 2, queue=queue)
    with psycopg.connect(system.database_url, autocommit=True) as connection:
        connection.execute("; ".join(SESSION).encode())
        waiting = waiting_by_cause.count_waiting(connection, 1000)
        found = read_all(connection, ["mail", "letters", "calls", "idle"], waiting)
    assert {queue: wanted(each).backlog for queue, each in found.items()} == {
        "mail": 2,
        "letters": 2,
        "calls": 2,
        "idle": 0,
    }
