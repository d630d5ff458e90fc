"""`drain explain` names the one thing for which a job waits, whichever it is."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from redis import Redis
from rq import SimpleWorker

from drain.__main__ import main
from drain.admission.depths import SHORTEST
from drain.database import postgres
from drain.read import queries
from drain.read.explain import CAUSES
from drain.tables import claims, outcomes, staged
from drain.tables.claims import Claim
from drain.wire import Producer
from tests.helpers import (
    NAMESPACE,
    connected,
    environment,
    ids_in,
    new_enqueuer,
    query,
    wait_until,
)

AWAY = "redis://127.0.0.1:1/0"
WORKER = "web-1:4711:c0ffee"
INFLIGHT = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery, key,
    claimed_at, claimed_by, fencing_token, lease_expires_at, next_run_at)
SELECT nextval('staged_jobs_id_seq'), 'm.f', '[]', '{}', %(queue)s, 0, now(), now(), 0, %(key)s,
    CASE WHEN %(claimed)s THEN now() END, CASE WHEN %(claimed)s THEN 'web-1:4711:c0ffee' END, 1,
    CASE WHEN %(claimed)s THEN now() + interval '1 hour' END, %(next_run_at)s::timestamptz RETURNING id
"""
FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, finished_by, attempts, fencing_token, key, superseded_by)
SELECT nextval('staged_jobs_id_seq'), 'm.f', '[]', '{}', 'mail', 0, now(), now(), now() - ago, now() - ago, now() - ago,
    'web-1:4711:c0ffee', 1, 1, %s, %s FROM generate_series(1, %s) AS ids (number),
    LATERAL (SELECT number * %s::interval) AS since (ago) RETURNING id
"""


class System:
    """A database and a Redis, and what a job of the queue `mail` may meet there."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        self.database_url, self.redis_url = database_url, redis_url
        self.env = environment(database_url, redis_url)

    def explain(self, job_id: int, **env: str) -> dict[str, Any]:
        result = CliRunner().invoke(main, ["explain", str(job_id), "--json"], env=self.env | env)
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        assert found["id"] == job_id
        assert found["cause"] in CAUSES
        text = (
            CliRunner().invoke(main, ["explain", str(job_id)], env=self.env | env | {"COLUMNS": "80"}).stdout
        )
        assert max(map(len, text.splitlines())) <= 80
        state, cause = found["state"], found["cause"]
        assert f"\nstate   {state if state == cause else f'{state}: {cause}'}\n" in text
        return found

    def cause(self, job_id: int) -> str:
        return str(self.explain(job_id)["cause"])

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return query(self.database_url, statement, *parameters)

    def stage(self, **columns: Any) -> int:
        """Stage one job of the queue `mail` that has been due for a minute, with these columns."""
        a_minute_ago = datetime.now().astimezone() - timedelta(minutes=1)
        due = {"staged_at": a_minute_ago, "scheduled_at": a_minute_ago}
        given: dict[str, Any] = {"job_name": "m.f", "queue": "mail", **due, **columns}
        statement = f"INSERT INTO staged_jobs ({', '.join(given)}) VALUES ({', '.join(['%s'] * len(given))})"
        return int(self.execute(f"{statement} RETURNING id", *given.values())[0][0])

    def in_flight(
        self, *, queue: str = "mail", key: str | None = None, claimed: bool = False, next_run_at: Any = None
    ) -> int:
        parameters = {"queue": queue, "key": key, "claimed": claimed, "next_run_at": next_run_at}
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            row = connection.execute(INFLIGHT, parameters).fetchone()
        assert row is not None
        return int(row[0])

    def full_list(self, depth: int = 1, *, ids: int = 1) -> None:
        """Push ids of delivered jobs, and show what the leader shows if no list may be longer than `depth`."""
        with Redis.from_url(self.redis_url) as client:
            client.rpush("rq:queue:mail", *(f"{NAMESPACE}-{self.in_flight()}-0" for _ in range(ids)))
        with closing(Producer(self.redis_url, NAMESPACE)) as producer:
            producer.show_bounds({"mail": depth})

    def finished(
        self, count: int = 1, *, every: str = "1 second", key: str | None = None, by: Any = None
    ) -> int:
        return int(self.execute(FINISHED, key, by, count, every)[0][0])

    def lasted(self, time: str) -> None:
        """Let each finished job have lasted for so long."""
        self.execute("UPDATE finished_jobs SET moved_at = claimed_at - %s::interval", time)

    def rules(self, **columns: Any) -> None:
        given = {"queue": "mail", **columns}
        marks = ", ".join(["%s"] * len(given))
        self.execute(f"INSERT INTO queues ({', '.join(given)}) VALUES ({marks})", *given.values())

    def pause(self, **columns: Any) -> None:
        marks = ", ".join(["%s"] * len(columns))
        self.execute(f"INSERT INTO queue_pauses ({', '.join(columns)}) VALUES ({marks})", *columns.values())

    def drained(self) -> int:
        job_id = self.stage()
        with new_enqueuer(self.database_url, self.redis_url) as enqueuer:
            enqueuer.drain()
        # PostgreSQL notices later that the session has ended.
        wait_until(lambda: queries.leader(connected(self.database_url)) is None)
        return job_id

    def claim(self, job_id: int) -> Claim:
        with closing(postgres.connect(self.database_url, "worker")) as connection:
            claim = claims.claim(connection, job_id, worker=WORKER, limits={})
        assert claim is not None
        return claim

    @contextmanager
    def worker(self) -> Iterator[None]:
        with Redis.from_url(self.redis_url) as client:
            worker = SimpleWorker(["mail"], connection=client)
            worker.register_birth()  # type: ignore[no-untyped-call]
            yield
            worker.register_death()  # type: ignore[no-untyped-call]


@pytest.fixture
def system(database_url: str, redis_url: str) -> System:
    return System(database_url, redis_url)


def test_in_a_queue_with_aging_places_follow_the_aged_order(system: System) -> None:
    system.rules(aging_seconds=30)
    long_ago = datetime.now().astimezone() - timedelta(minutes=10)
    # Patient, and so old that it has risen above all others; and urgent, but new.
    old = system.stage(priority=5, staged_at=long_ago, scheduled_at=long_ago)
    middle = system.stage(priority=0)
    later = system.stage(priority=1)
    with new_enqueuer(system.database_url, system.redis_url):
        places = [system.explain(job_id)["details"]["in_queue"] for job_id in (old, middle, later)]

    assert places == [0, 1, 2]


@pytest.fixture
def led(system: System) -> Iterator[System]:
    """The same, with a leader that does nothing, and a worker of the queue."""
    with new_enqueuer(system.database_url, system.redis_url) as enqueuer, system.worker():
        enqueuer.redis.mark()
        yield system


def seconds_from_now(found: dict[str, Any]) -> float:
    return (datetime.fromisoformat(found["estimate"]["at"]) - datetime.now().astimezone()).total_seconds()


# --- ids that no table has


def test_an_id_that_was_never_issued_is_reported_as_such(system: System) -> None:
    job_id = system.stage()

    found = system.explain(job_id + 1)

    assert (found["state"], found["cause"]) == ("unknown", "not_given_out")
    assert found["details"]["last_id"] == job_id
    assert system.cause(0) == "not_given_out"


def test_a_missing_id_may_belong_to_an_open_transaction(system: System) -> None:
    with psycopg.connect(system.database_url, application_name="shop") as connection:
        ((job_id,),) = connection.execute(
            "INSERT INTO staged_jobs (job_name) VALUES ('m.f') RETURNING id"
        ).fetchall()
        found = system.explain(job_id)
        connection.rollback()

    assert found["cause"] == "uncommitted"
    assert [each["application"] for each in found["details"]["transactions"]] == ["shop"]
    assert found["since"] is not None
    assert found["details"]["bulk"] is False
    assert system.cause(job_id) == "absent"


def test_a_bulk_load_that_is_not_committed_is_named(system: System) -> None:
    with closing(postgres.connect(system.database_url, "backfill")) as connection, connection.transaction():
        staged.announce_bulk(connection)
        ((job_id,),) = connection.execute(
            "INSERT INTO staged_jobs (job_name) VALUES ('m.f') RETURNING id"
        ).fetchall()
        found = system.explain(job_id)

    assert found["cause"] == "uncommitted"
    assert found["details"]["bulk"] is True
    assert "bulk load" in found["why"]
    assert system.explain(job_id)["state"] == "staged"


# --- staged


def test_a_scheduled_job_waits_for_its_time(led: System) -> None:
    job_id = led.stage(scheduled_at=datetime.now().astimezone() + timedelta(hours=1))

    found = led.explain(job_id)
    assert (found["state"], found["cause"]) == ("staged", "scheduled")
    assert found["estimate"]["seconds"] == pytest.approx(3600, abs=60)
    assert seconds_from_now(found) == pytest.approx(3600, abs=60)

    led.pause(queue="mail")
    found = led.explain(job_id)
    assert (found["cause"], found["estimate"]["seconds"]) == ("scheduled", None)


def test_nothing_starts_without_a_leader(system: System) -> None:
    found = system.explain(system.stage())

    assert found["cause"] == "no_leader"
    assert found["since"] is not None
    assert found["estimate"]["seconds"] is None


def test_an_unavailable_or_unset_redis_is_reported(led: System) -> None:
    job_id = led.stage()

    assert led.explain(job_id, DRAIN_REDIS_URL=AWAY)["cause"] == "redis_away"
    unnamed = led.explain(job_id, DRAIN_REDIS_URL="")
    assert unnamed["cause"] == "next"
    assert "DRAIN_REDIS_URL" in unnamed["also"][0]


def test_a_queue_owned_by_another_database_is_reported(led: System) -> None:
    with Redis.from_url(led.redis_url) as client:
        client.hset("drain:owners:queues", "mail", "00000000-0000-0000-0000-000000000000 other on db:5432")

    found = led.explain(led.stage())

    assert found["cause"] == "other_database"
    assert "other on db:5432" in found["why"]


def test_an_expired_job_does_not_start(led: System) -> None:
    assert led.cause(led.stage(expires_at=datetime.now().astimezone() - timedelta(seconds=1))) == "expired"


@pytest.mark.parametrize(
    ("pause", "words"),
    [
        ({"queue": "mail"}, "queue mail is paused"),
        ({"job_name": "m.f"}, "job name m.f is paused"),
        ({"key": "acme"}, "key acme is paused"),
        ({"queue": "mail", "key": "acme"}, "key acme of queue mail is paused"),
    ],
)
def test_a_pause_is_named_with_its_end_its_author_and_its_reason(
    led: System, pause: dict[str, str], words: str
) -> None:
    job_id = led.stage(key="acme")
    led.pause(**{name: f"not {text}" for name, text in pause.items()})
    assert led.cause(job_id) == "next"
    led.pause(**pause, until=datetime.now().astimezone() + timedelta(hours=1))
    found = led.explain(job_id)
    assert found["cause"] == "paused"
    assert found["estimate"]["seconds"] == pytest.approx(3600, abs=60)

    led.pause(**pause, reason="the provider is down", paused_by="ann")
    found = led.explain(job_id)

    assert found["cause"] == "paused"
    assert found["why"] == f"{words} by ann: the provider is down"
    assert found["details"]["pause"]["paused_by"] == "ann"
    assert found["estimate"]["seconds"] is None


def test_an_expired_pause_has_no_effect(led: System) -> None:
    job_id = led.stage()
    led.pause(queue="mail", until=datetime.now().astimezone() - timedelta(seconds=1))

    assert led.cause(job_id) == "next"


def test_a_job_waits_for_the_quiet_time_of_its_unique_key(led: System) -> None:
    first = led.stage(unique_key="doc:42", keep="last", quiet_seconds=600)
    led.execute("UPDATE staged_jobs SET staged_at = now() - interval '300 seconds'")
    assert led.explain(first)["estimate"]["seconds"] == pytest.approx(300, abs=30)
    last = led.stage(unique_key="doc:42", keep="last", quiet_seconds=600)
    led.stage(unique_key="doc:43", keep="last", quiet_seconds=600)

    found = led.explain(last)

    assert found["cause"] == "quiet"
    assert found["estimate"]["seconds"] == pytest.approx(540, abs=30)
    assert len(found["details"]["jobs"]) == 2
    found = led.explain(first)
    assert found["cause"] == "quiet"
    assert found["why"].endswith(f"; then job {last} will supersede it")
    assert found["estimate"]["seconds"] is None


def test_a_rescheduled_job_waits_for_others_of_its_unique_key(led: System) -> None:
    soon = datetime.now().astimezone() + timedelta(seconds=540)
    job_id = led.stage(unique_key="doc:42", quiet_seconds=600, scheduled_at=soon)
    assert led.cause(job_id) == "quiet"

    later = led.stage(unique_key="doc:43", quiet_seconds=600, scheduled_at=soon + timedelta(hours=1))
    assert led.cause(later) == "scheduled"


def test_a_job_that_gives_way_names_its_replacement(led: System) -> None:
    first, second = (led.stage(unique_key="doc:42") for _ in range(2))
    other, last = (led.stage(unique_key="doc:43", keep="last") for _ in range(2))
    another_name = led.stage(unique_key="doc:42", job_name="m.g")

    assert (led.cause(first), led.cause(last)) == ("next", "next")
    assert led.cause(another_name) == "next"
    found = led.explain(second)
    assert (found["cause"], found["details"]["stands"]) == ("gives_way", first)
    assert led.explain(other)["details"]["stands"] == last
    delivered = led.in_flight()
    led.execute("UPDATE inflight_jobs SET unique_key = 'doc:42'")
    assert led.explain(first)["details"]["stands"] == delivered


def test_in_an_ordered_queue_a_job_waits_for_earlier_ones_of_its_key(led: System) -> None:
    first, second, third = (led.stage(key="acme") for _ in range(3))
    other = led.stage(key="other")
    led.rules(ordered=True)

    assert (led.cause(first), led.cause(other)) == ("next", "next")
    found = led.explain(third)
    assert (found["cause"], found["details"]["held_by"], found["details"]["before"]) == ("order", first, 2)
    running = led.in_flight(key="acme", claimed=True)
    found = led.explain(second)
    assert (found["cause"], found["details"]["held_by"]) == ("order", running)
    assert WORKER in found["why"]
    assert led.cause(other) == "next"


def test_a_job_behind_a_paused_one_of_its_key_has_no_estimate(led: System) -> None:
    led.finished(30, key="acme")
    head, behind = led.stage(key="acme", job_name="m.g"), led.stage(key="acme")
    led.rules(ordered=True)
    assert led.explain(behind)["estimate"]["seconds"] is not None
    led.pause(queue="mail", job_name="m.g")
    found = led.explain(behind)
    assert (found["cause"], found["details"]["held_by"]) == ("order", head)
    assert found["estimate"] == {"seconds": None, "reason": f"job {head} is paused", "at": None}


def test_in_an_ordered_queue_retries_and_dead_jobs_hold_their_key(led: System) -> None:
    dead = led.stage(key="acme")
    job_id = led.stage(key="acme")
    led.execute(
        "WITH gone AS (DELETE FROM staged_jobs WHERE id = %s RETURNING *) INSERT INTO dead_jobs (id, job_name, "
        "job_args, job_kwargs, queue, priority, scheduled_at, staged_at, key, reason, explanation) SELECT id, "
        "job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, key, 'failed', 'for a test' "
        "FROM gone",
        dead,
    )
    led.rules(ordered=True)
    found = led.explain(job_id)
    assert (found["cause"], found["details"]["held_by"]) == ("order_dead", dead)
    assert f"drain dead retry {dead}" in found["why"]

    led.execute("UPDATE queues SET on_dead = 'skip'")
    assert led.cause(job_id) == "next"
    retry = led.in_flight(key="acme", next_run_at=datetime.now().astimezone() + timedelta(hours=1))
    # A later one does not hold it.
    assert led.cause(job_id) == "next"
    led.execute("UPDATE inflight_jobs SET id = %s WHERE id = %s", dead, retry)
    found = led.explain(job_id)
    assert (found["cause"], found["details"]["held_by"]) == ("order", dead)


def test_a_limit_that_is_full_names_the_jobs_that_fill_it(led: System) -> None:
    led.rules(running=3, running_per_key=2)
    job_id, other = led.stage(key="acme"), led.stage(key="other")
    running = [led.in_flight(key="acme", claimed=True) for _ in range(2)]
    led.in_flight(queue="letters", key="other", claimed=True)
    led.finished(10, every="2 seconds", key="acme")
    led.lasted("2 seconds")

    found = led.explain(job_id)
    assert found["cause"] == "limit_of_key"
    assert [each["id"] for each in found["details"]["filled_by"]] == running
    assert {each["worker"] for each in found["details"]["filled_by"]} == {WORKER}
    assert found["estimate"]["seconds"] == pytest.approx(2, abs=1)
    assert led.cause(other) == "next"

    led.in_flight(key="third")
    found = led.explain(other)
    assert (found["cause"], found["details"]["limit"], found["details"]["running"]) == ("limit", 3, 3)


def test_a_waiting_retry_does_not_count_towards_a_limit(led: System) -> None:
    led.rules(running=1)
    led.in_flight(next_run_at=datetime.now().astimezone() + timedelta(hours=1))

    assert led.cause(led.stage()) == "next"


def test_idle_time_does_not_slow_down_the_estimate(led: System) -> None:
    led.rules(running=1)
    job_id, _ = led.stage(), led.in_flight(claimed=True)
    led.finished(4, every="100 seconds")
    led.lasted("2 seconds")

    found = led.explain(job_id)

    assert found["estimate"]["reason"].startswith("0 ahead; queue mail recently completed a job every ")
    # Those four took eight seconds, and the job that runs a moment.
    assert found["estimate"]["seconds"] == pytest.approx(3, abs=2)


def test_the_estimate_prefers_jobs_that_ended_during_the_wait(led: System) -> None:
    led.rules(running=1)
    job_id, _ = led.stage(), led.in_flight(claimed=True)
    led.finished(40, every="10 seconds")
    led.lasted("10 seconds")
    assert led.explain(job_id)["estimate"]["seconds"] == pytest.approx(10, abs=2)

    led.finished(60, every="0.9 seconds")
    led.lasted("1 second")

    assert led.explain(job_id)["estimate"]["seconds"] == pytest.approx(1, abs=0.3)


def test_the_estimated_speed_never_exceeds_the_rate(led: System) -> None:
    led.rules(rate="6/min", running=1)
    job_id, _ = led.stage(), led.in_flight(claimed=True)
    led.finished(3, every="0.1 seconds")

    found = led.explain(job_id)

    assert found["cause"] == "limit"
    assert found["why"].startswith("1 job in queue mail is running, the maximum: job ")
    assert found["estimate"]["seconds"] == pytest.approx(10, abs=1)


def test_a_burst_is_used_up_before_the_rate_holds_a_job(led: System) -> None:
    job_id = led.stage()
    led.rules(rate="6/min", burst=5)
    led.finished(5, every="10 seconds")
    assert "just taken over" in led.explain(job_id)["why"]
    led.execute("UPDATE drain_state SET leader_since = now() - interval '1 hour'")
    assert led.cause(job_id) == "next"

    led.finished(5, every="0.1 seconds")
    assert led.cause(job_id) == "rate"


def test_a_rate_that_is_used_up_says_when_the_next_job_may_begin(led: System) -> None:
    job_id, behind = led.stage(key="acme"), led.stage(key="acme")
    led.execute("UPDATE drain_state SET leader_since = now() - interval '1 hour'")
    led.rules(rate="6/min")
    assert led.cause(job_id) == "next"
    led.finished(every="14 seconds")
    led.finished(every="4 seconds")

    found = led.explain(job_id)
    assert found["cause"] == "rate"
    assert found["estimate"]["seconds"] == pytest.approx(6, abs=2)
    assert led.explain(behind)["estimate"]["seconds"] == pytest.approx(16, abs=2)

    led.execute("UPDATE queues SET rate = '1000/s', rate_per_key = '6/min'")
    assert led.cause(job_id) == "next"
    led.finished(every="4 seconds", key="acme")
    assert led.cause(job_id) == "rate_of_key"
    assert led.cause(led.stage(key="other")) == "next"


def test_a_full_list_is_reported_with_the_jobs_place(led: System) -> None:
    led.full_list()
    first, _, urgent, last = (
        led.stage(key="acme"),
        led.stage(key="other"),
        led.stage(priority=-1),
        led.stage(key="acme"),
    )
    led.stage(queue="letters", priority=-5)
    led.finished(20, every="0.5 seconds")
    led.lasted("0.5 seconds")

    found = led.explain(last)
    assert found["cause"] == "list_full"
    assert found["details"] == {"listed": 1, "depth": 1, "in_queue": 3, "in_key": 1, "more": False}
    assert found["estimate"]["seconds"] == pytest.approx(2.5, abs=1)
    assert led.explain(urgent)["details"]["in_queue"] == 0
    assert led.explain(first)["details"]["in_queue"] == 1
    led.execute("DELETE FROM finished_jobs")
    found = led.explain(last)
    assert found["estimate"]["seconds"] is None
    assert "queue mail completed no jobs" in found["estimate"]["reason"]


def test_a_list_is_reported_full_exactly_while_the_leader_stops_pushing(system: System) -> None:
    with (
        new_enqueuer(system.database_url, system.redis_url, depth=None) as enqueuer,
        Redis.from_url(system.redis_url) as client,
        system.worker(),
    ):
        enqueuer.redis.mark()
        waiting = [system.stage() for _ in range(SHORTEST + 1)][-1]
        assert system.cause(waiting) == "next"
        assert enqueuer.drain() == SHORTEST
        wait_until(lambda: enqueuer.drain() or system.cause(waiting) == "list_full")
        assert len(ids_in(system.database_url, "inflight_jobs")) == SHORTEST

        client.lpop("rq:queue:mail", SHORTEST // 2 - 1)
        assert system.cause(waiting) == "list_full"
        assert enqueuer.drain() == 0
        client.lpop("rq:queue:mail")
        assert system.cause(waiting) == "next"
        assert wait_until(enqueuer.drain) == 1


def test_in_a_fair_queue_a_new_key_waits_for_one_job_of_each_other_key(led: System) -> None:
    led.full_list()
    led.execute(
        "INSERT INTO staged_jobs (job_name, queue, key) SELECT 'm.f', 'mail', 'acme' FROM generate_series(1, 50)"
    )
    job_id = led.stage(key="other")
    led.rules(fair=True)
    led.finished(10, every="1 second")

    found = led.explain(job_id)

    assert found["details"]["in_queue"] == 50
    assert found["estimate"]["seconds"] < 5


def test_a_full_list_without_a_worker_waits_for_a_worker(system: System) -> None:
    with new_enqueuer(system.database_url, system.redis_url) as enqueuer:
        enqueuer.redis.mark()
        delivered, job_id = system.in_flight(), system.stage()
        system.full_list()
        system.rules(running=2)
        assert system.cause(job_id) == "no_worker"
        system.execute("DELETE FROM queues")

        assert system.cause(job_id) == "no_worker"
        assert system.cause(delivered) == "no_worker"
        with system.worker():
            assert system.cause(job_id) == "list_full"


def test_places_are_counted_up_to_a_bound(led: System, monkeypatch: pytest.MonkeyPatch) -> None:
    led.full_list()
    led.execute(
        "INSERT INTO staged_jobs (job_name, queue) SELECT 'm.f', 'mail' FROM generate_series(1, 10100)"
    )
    led.finished(10)

    found = led.explain(led.stage())

    assert found["details"]["more"] is True
    assert "more than 10,000" in found["why"]
    assert found["estimate"]["seconds"] is None


# --- in flight


def test_a_delivered_job_has_a_place_in_its_list(system: System) -> None:
    first, second = system.drained(), system.drained()
    system.finished(10, every="1 second")
    system.lasted("1 second")
    with new_enqueuer(system.database_url, system.redis_url) as enqueuer, system.worker():
        enqueuer.redis.mark()
        found = system.explain(second)
        assert (found["state"], found["cause"], found["details"]["before"]) == ("queued", "queued", 1)
        assert found["estimate"]["seconds"] == pytest.approx(2, abs=1)
        with Redis.from_url(system.redis_url) as client:
            client.set("rq:suspended", "1")
            assert system.cause(second) == "suspended"
            client.delete("rq:suspended")
            client.lpop("rq:queue:mail")
        assert system.cause(first) == "popped"
        system.pause(queue="mail")
        assert system.cause(second) == "paused"


def test_a_delivery_that_redis_has_forgotten_waits_for_the_leader(system: System) -> None:
    job_id = system.drained()
    with system.worker(), Redis.from_url(system.redis_url) as client:
        client.delete("rq:queue:mail", f"drain:{NAMESPACE}")

        assert system.cause(job_id) == "no_leader"
        with new_enqueuer(system.database_url, system.redis_url):
            found = system.explain(job_id)
    assert found["cause"] == "next"
    assert "about to push" in found["why"]


def test_a_running_job_names_its_worker_and_its_lease(led: System) -> None:
    found = led.explain(led.in_flight(claimed=True))

    assert (found["state"], found["cause"], found["details"]["worker"]) == ("running", "running", WORKER)
    assert found["since"] is not None


def test_a_job_with_an_expired_lease_is_redelivered(led: System) -> None:
    job_id = led.in_flight(claimed=True)
    led.execute("UPDATE inflight_jobs SET lease_expires_at = now() - interval '1 second'")

    found = led.explain(job_id)

    assert (found["state"], found["cause"]) == ("stalled", "lease_over")


@pytest.fixture
def attempted(system: System) -> Callable[[bool], int]:
    def attempt(failed: bool) -> int:
        job_id = system.drained()
        claim = system.claim(job_id)
        with closing(postgres.connect(system.database_url, "worker")) as connection:
            if failed:
                error = {"type": "OSError", "message": "no"}
                assert outcomes.retry_later(connection, claim, 600, error)
            else:
                assert outcomes.defer(connection, claim, 600)
        return job_id

    return attempt


def test_a_failed_job_waits_for_the_time_of_its_next_attempt(
    system: System, attempted: Callable[[bool], int]
) -> None:
    job_id = attempted(True)

    found = system.explain(job_id)
    assert (found["state"], found["cause"]) == ("retrying", "retry_at")
    assert found["estimate"]["seconds"] == pytest.approx(600, abs=30)
    assert "OSError" in found["why"]

    system.execute("UPDATE inflight_jobs SET next_run_at = now()")
    assert system.cause(job_id) == "no_leader"
    with new_enqueuer(system.database_url, system.redis_url):
        assert system.cause(job_id) == "next"
        system.rules(running=1)
        system.in_flight(claimed=True)
        assert system.cause(job_id) == "limit"
        system.execute("DELETE FROM queues")
        system.execute(
            "UPDATE inflight_jobs SET next_run_at = now() - interval '1 minute' WHERE id = %s", job_id
        )
        system.full_list()
        with system.worker():
            assert system.cause(job_id) == "list_full"
        system.pause(job_name="m.f")
        assert system.cause(job_id) == "paused"


def test_a_job_that_has_asked_to_run_later_is_deferred(
    system: System, attempted: Callable[[bool], int]
) -> None:
    found = system.explain(attempted(False))

    assert (found["state"], found["cause"]) == ("deferred", "deferred")
    assert found["estimate"]["seconds"] == pytest.approx(600, abs=30)


def test_retries_of_a_failing_queue_are_let_through_one_at_a_time(
    led: System, attempted: Callable[[bool], int]
) -> None:
    for _ in range(5):
        job_id = led.in_flight(next_run_at=datetime.now().astimezone() - timedelta(seconds=1))
    led.execute("UPDATE inflight_jobs SET failed_at = now(), claimed_at = now()")

    assert led.cause(job_id) == "failing_queue"


def test_a_job_called_back_by_a_pause_waits_for_the_pause(led: System) -> None:
    job_id = led.in_flight(next_run_at=datetime.now().astimezone())
    led.pause(queue="mail")
    assert led.cause(job_id) == "paused"

    led.execute("DELETE FROM queue_pauses")
    assert led.explain(job_id)["state"] == "called_back"
    assert led.cause(job_id) == "next"
    led.execute("UPDATE inflight_jobs SET next_run_at = now() - interval '1 minute'")
    led.full_list()
    assert led.cause(job_id) == "list_full"


# --- ended


def test_a_superseded_job_names_its_replacement(system: System) -> None:
    found = system.explain(system.finished())
    assert (found["state"], found["cause"], found["details"]["worker"]) == ("finished", "finished", WORKER)

    found = system.explain(system.finished(by=7))
    assert (found["cause"], found["details"]["superseded_by"]) == ("superseded", 7)


@pytest.mark.parametrize(("reason", "cause"), [("failed", "dead"), ("cancelled", "cancelled")])
def test_a_dead_job_says_why(system: System, reason: str, cause: str) -> None:
    job_id = system.drained()
    claim = system.claim(job_id)
    with closing(postgres.connect(system.database_url, "worker")) as connection:
        assert outcomes.bury_claimed(connection, claim, reason=reason, explanation="it was too late")

    found = system.explain(job_id)

    assert (found["state"], found["cause"]) == ("dead", cause)
    assert found["why"] == f"{reason}: it was too late; `drain dead retry {job_id}` runs it again"
    told = f"{reason} 1 time"
    system.execute("UPDATE dead_jobs SET explanation = %s", told)
    assert system.explain(job_id)["why"].startswith(f"{told};")


def test_a_word_is_refused_as_a_job_id(system: System) -> None:
    result = CliRunner().invoke(main, ["explain", "mail"], env=system.env)

    assert result.exit_code == 2
    assert "not a job id" in result.output
