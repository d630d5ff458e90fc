"""All workers of a queue are busy with the jobs of another one: every command says so, and promises nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis
from rq import SimpleWorker

from drain.__main__ import main
from drain.wire import Producer
from tests.helpers import NAMESPACE, environment, new_enqueuer, query
from tests.web_pages import visitor

# Jobs of 50 ms, the latest of them five minutes ago.
FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, finished_by, attempts, fencing_token)
SELECT nextval('staged_jobs_id_seq'), 'm.pay', '[]', '{}', 'payments', 0, at, at, at, at, at + interval '50 ms',
    'web-1:1:c0ffee', 1, 1
FROM generate_series(1, 300) AS number,
    LATERAL (SELECT now() - interval '5 min' - number * interval '60 ms' AS at) AS job
"""
# Each of six workers has run a report for fifty minutes.
REPORTS = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery,
    fencing_token, attempts, claimed_at, claimed_by, lease_expires_at)
SELECT nextval('staged_jobs_id_seq'), 'm.report', '[]', '{}', 'reports', 0, now(), now(), 0, 1, 1,
    now() - interval '50 min', 'web-1:' || number || ':c0ffee', now() + interval '1 hour'
FROM generate_series(1, 6) AS number
"""
WAITING = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    delivery)
SELECT nextval('staged_jobs_id_seq'), 'm.pay', '[]', '{}', 'payments', 0, at, at, at, number
FROM generate_series(1, 60) AS number, LATERAL (SELECT now() - interval '2 min' AS at) AS job RETURNING id
"""


class Scene:
    def __init__(self, database_url: str, redis_url: str, client: Redis, redis: Producer) -> None:
        self.show_bounds = redis.show_bounds
        self.database_url, self.redis_url, self.client = database_url, redis_url, client
        self.env = environment(database_url, redis_url)
        query(database_url, FINISHED)
        query(database_url, REPORTS)
        self.ids = [job_id for (job_id,) in query(database_url, WAITING)]
        client.rpush("rq:queue:payments", *(f"{NAMESPACE}-{id_}-{at}" for at, id_ in enumerate(self.ids, 1)))
        for number in range(1, 7):
            worker = SimpleWorker(["payments", "reports"], name=f"w{number}", connection=client)
            worker.register_birth()  # type: ignore[no-untyped-call]
            client.hset(worker.key, mapping={"hostname": "web-1", "pid": str(number), "state": "busy"})

    def run(self, *words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, [*words], env=self.env | {"COLUMNS": "120"})
        assert result.exit_code == code, result.output
        return result.stdout

    def json(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(*words, "--json"))
        return found

    def explain(self, place: int = -1) -> dict[str, Any]:
        return self.json("explain", str(self.ids[place]))


@pytest.fixture
def scene(database_url: str, redis_url: str) -> Iterator[Scene]:
    with new_enqueuer(database_url, redis_url) as enqueuer, Redis.from_url(redis_url) as client:
        query(database_url, "UPDATE drain_state SET leader = 'me', leader_since = now()")
        enqueuer.redis.mark()
        yield Scene(database_url, redis_url, client, enqueuer.redis)


def test_explain_reports_what_keeps_the_workers_busy_and_since_when(scene: Scene) -> None:
    found = scene.explain()
    assert found["cause"] == "workers_busy"
    assert "all 6 workers of queue payments are busy" in found["why"]
    assert "6 with m.report of queue reports (for 50m" in found["why"]
    assert (found["details"]["workers"], found["details"]["before"]) == (6, 59)
    assert found["estimate"]["seconds"] is None
    # The same for one that waits in `staged_jobs` for room in the list.
    stage = "INSERT INTO staged_jobs (job_name, queue) VALUES ('m.pay', 'payments') RETURNING id"
    ((job_id,),) = query(scene.database_url, stage)
    scene.show_bounds({"payments": 25})
    staged = scene.json("explain", str(job_id))
    assert (staged["cause"], staged["estimate"]["seconds"]) == ("workers_busy", None)


def test_a_free_or_active_worker_allows_an_estimate(scene: Scene) -> None:
    scene.client.hset("rq:worker:w6", "state", "idle")
    found = scene.explain()
    assert found["cause"] == "queued"
    assert found["estimate"]["seconds"] < 60
    scene.client.hset("rq:worker:w6", "state", "busy")
    query(scene.database_url, "UPDATE inflight_jobs SET claimed_at = now() WHERE claimed_by LIKE 'web-1:6:%'")
    assert scene.explain()["cause"] == "queued"


def test_the_full_flag_of_a_process_overrides_its_state(scene: Scene) -> None:
    # It runs one job of several.
    scene.client.hset("rq:worker:w6", "drain_full", "0")
    assert scene.explain()["cause"] == "queued"
    assert scene.json("forecast", "payments")["ends_seconds"] < 60
    scene.client.hset("rq:worker:w6", mapping={"drain_full": "1", "state": "idle"})
    assert scene.explain()["cause"] == "workers_busy"


def test_workers_that_run_plain_jobs_are_busy_too(scene: Scene) -> None:
    query(scene.database_url, "DELETE FROM inflight_jobs WHERE queue = 'reports'")
    found = scene.explain()
    assert (found["cause"], found["estimate"]["seconds"]) == ("workers_busy", None)
    assert "6 with plain RQ jobs" in found["why"]
    assert scene.json("forecast", "payments")["ends_seconds"] is None


def test_forecast_gives_no_end_while_all_workers_are_busy(scene: Scene) -> None:
    found = scene.json("forecast", "payments")
    assert (found["ends_seconds"], found["workers"]) == (None, 6)
    assert "all workers are busy with long jobs" in scene.run("forecast", "payments")
    assert scene.json("forecast", "payments", "--workers", "2")["ends_seconds"] < 60


def test_check_warns_of_a_stalled_queue_and_of_a_long_wait(scene: Scene) -> None:
    line = scene.run("check", code=1)
    assert "all workers are busy, and no jobs are completing in queue payments" in line
    assert "stalled=1" in line
    assert "no jobs are completing" in scene.run("check", "--stalled", "critical", code=2)
    scene.run("check", "--stalled", "ignore")
    query(
        scene.database_url,
        "UPDATE inflight_jobs SET moved_at = now() - interval '6 min', "
        "scheduled_at = now() - interval '6 min', staged_at = now() - interval '6 min' WHERE queue = 'payments'",
    )
    assert "jobs in queue payments have waited 6m" in scene.run("check", "--stalled", "ignore", code=1)


def test_status_and_top_show_free_workers_and_the_stalled_queue(scene: Scene) -> None:
    found = scene.json("status")["queues"]["payments"]
    assert (found["workers"], found["free"]) == (6, 0)
    assert found["stalled_seconds"] == pytest.approx(120, abs=60)
    text = scene.run("status")
    assert "payments stalled" in text
    assert "payments: 6 workers, none free, and no jobs are completing; the oldest has waited 2m" in text
    (line,) = [line for line in scene.run("top").splitlines() if line.startswith("payments")]
    assert " 0/6 " in line
    assert " Stalled " in line


def test_the_page_shows_that_the_queue_is_stalled(scene: Scene) -> None:
    with visitor(scene.database_url, scene.redis_url) as browser:
        for path in ("/", "/queues/payments"):
            text = browser.get(path)
            assert re.search(r'class="badge bad"><svg [^\n]+</svg>Stalled</span>', text)
            assert "0 of 6 free" in text
            assert re.search(r"obs have waited 2m( [\d]+s)? and none completed for a minute", text)
        assert "all workers are busy" in text


def test_a_paused_or_progressing_queue_is_not_stalled(scene: Scene) -> None:
    query(scene.database_url, "INSERT INTO queue_pauses (queue) VALUES ('payments')")
    assert scene.json("status")["queues"]["payments"]["stalled_seconds"] is None
    query(scene.database_url, "DELETE FROM queue_pauses")
    query(scene.database_url, FINISHED.replace("5 min", "30 s"))
    assert scene.json("status")["queues"]["payments"]["stalled_seconds"] is None
