"""A queue that fails again and again has its retries let through one at a time, until one of its jobs finishes."""

import json
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from click.testing import CliRunner
from redis import Redis

from drain import metrics
from drain.__main__ import main
from drain.database import postgres
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import Redelivery
from drain.tables import claims, finishes, outcomes, waiting
from drain.tables.claims import Claim
from tests import jobs_for_tests
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    environment,
    ids_in,
    leading,
    new_enqueuer,
    pushed_jobs,
    query,
    stage_jobs,
    wait_until,
)

MANY = 5
ERROR = {"type": "ConnectionError", "message": "the mail server is away", "traceback": ""}
LATER_SECONDS = 3600


class Queue:
    """Jobs of one queue, in the hands of a worker whose target is down or up."""

    def __init__(self, database_url: str, redis_url: str, name: str) -> None:
        self.database_url, self.redis_url, self.name = database_url, redis_url, name

    def stage(self, count: int) -> list[int]:
        return stage_jobs(self.database_url, count, queue=self.name)

    def pop(self) -> list[int]:
        """All that is in the list, which is empty afterwards."""
        ids = pushed_jobs(self.redis_url, self.name)
        with Redis.from_url(self.redis_url) as client:
            client.delete(f"rq:queue:{self.name}")
        return ids

    def claim(self, job_id: int) -> Claim:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            claim = claims.claim(connection, job_id, worker="test", limits={})
        assert claim is not None
        return claim

    def fail(self, *ids: int, wait_seconds: float = 0) -> None:
        for job_id in ids:
            claim = self.claim(job_id)
            with psycopg.connect(self.database_url, autocommit=True) as connection:
                assert outcomes.retry_later(connection, claim, wait_seconds, ERROR)

    def defer(self, job_id: int) -> None:
        claim = self.claim(job_id)
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            assert outcomes.defer(connection, claim, 0)

    def finish(self, job_id: int) -> None:
        claim = self.claim(job_id)
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            assert finishes.finish(connection, claim)

    def bury(self, job_id: int) -> None:
        claim = self.claim(job_id)
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            assert outcomes.bury_claimed(connection, claim, reason="failed", explanation="why", error=ERROR)

    def lose_the_worker(self, job_id: int) -> None:
        self.claim(job_id)
        query(
            self.database_url,
            "UPDATE inflight_jobs SET lease_expires_at = clock_timestamp() - interval '1 ms' WHERE id = %s",
            job_id,
        )

    def gauge(self) -> float | None:
        """What /metrics says."""
        values = {
            sample.labels["queue"]: sample.value
            for metric in metrics.FAILING.collect()
            for sample in metric.samples
        }
        return values.get(self.name)

    def is_failing(self) -> bool:
        """What `drain status --json` says."""
        env = {"DRAIN_DATABASE_URL": self.database_url, "DRAIN_REDIS_URL": self.redis_url}
        result = CliRunner().invoke(main, ["status", "--json"], env=env)
        failing = json.loads(result.stdout)["queues"][self.name]["failing"]
        assert isinstance(failing, bool)
        people = CliRunner().invoke(main, ["status"], env=env).stdout
        assert (f"{self.name} failing" in people) == failing
        return failing


@pytest.fixture
def mail(database_url: str, redis_url: str) -> Queue:
    return Queue(database_url, redis_url, "mail")


@pytest.fixture
def video(database_url: str, redis_url: str) -> Queue:
    return Queue(database_url, redis_url, "video")


@contextmanager
def new_leader(queue: Queue) -> Iterator[tuple[Enqueuer, Redelivery]]:
    with new_enqueuer(queue.database_url, queue.redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        enqueuer.drain()
        yield enqueuer, redelivery


@pytest.fixture
def leader(mail: Queue) -> Iterator[Redelivery]:
    with new_leader(mail) as (_, redelivery):
        yield redelivery


@pytest.fixture
def failing(mail: Queue, leader: Redelivery) -> list[int]:
    """Ids of the jobs that wait in a failing queue, all of them due; the leader has not looked yet."""
    return fail_all(mail, leader, MANY)


def fail_all(queue: Queue, leader: Redelivery, count: int) -> list[int]:
    ids = queue.stage(count)
    leader.enqueuer.drain()
    assert queue.pop() == ids
    queue.fail(*ids)
    return ids


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [record.queue for record in caplog.records if getattr(record, "event", None) == name]  # type: ignore[attr-defined]


def test_only_one_retry_of_a_failing_queue_is_let_through_at_a_time(
    mail: Queue, leader: Redelivery, failing: list[int]
) -> None:
    assert leader.run_once() == 1
    (on_trial,) = mail.pop()
    assert on_trial == failing[0]
    assert leader.run_once() == 0
    claim = mail.claim(on_trial)
    assert leader.run_once() == 0
    assert mail.pop() == []
    with psycopg.connect(mail.database_url) as connection:
        assert finishes.finish(connection, claim)


def test_the_remaining_retries_follow_once_one_job_has_finished(
    mail: Queue, leader: Redelivery, failing: list[int]
) -> None:
    leader.run_once()
    (on_trial,) = mail.pop()
    mail.finish(on_trial)
    assert leader.run_once() == MANY - 1
    assert mail.pop() == failing[1:]


def test_a_new_job_that_finishes_releases_the_remaining_retries(
    mail: Queue, leader: Redelivery, failing: list[int]
) -> None:
    leader.run_once()
    mail.pop()
    (new,) = mail.stage(1)
    leader.enqueuer.drain()
    assert mail.pop() == [new]
    mail.finish(new)
    assert leader.run_once() == MANY - 1


def test_fewer_failures_hold_nothing_back(mail: Queue, leader: Redelivery) -> None:
    ids = fail_all(mail, leader, MANY - 1)
    assert leader.run_once() == MANY - 1
    assert mail.pop() == ids
    assert (mail.gauge(), mail.is_failing()) == (None, False)


def test_only_failures_since_the_last_finish_count(mail: Queue, leader: Redelivery) -> None:
    fail_all(mail, leader, MANY - 1)
    (finished,) = mail.stage(1)
    leader.enqueuer.drain()
    mail.finish(finished)
    mail.pop()
    fail_all(mail, leader, MANY - 1)
    assert leader.run_once() == 2 * (MANY - 1)


def test_a_finish_in_another_queue_does_not_count(mail: Queue, video: Queue, leader: Redelivery) -> None:
    fail_all(mail, leader, MANY - 1)
    (finished,) = video.stage(1)
    leader.enqueuer.drain()
    video.finish(finished)
    fail_all(mail, leader, 1)
    assert leader.run_once() == 1


def test_other_queues_are_not_affected(
    mail: Queue, video: Queue, leader: Redelivery, failing: list[int]
) -> None:
    ids = fail_all(video, leader, MANY - 1)
    assert leader.run_once() == 1 + len(ids)
    assert (mail.pop(), video.pop()) == (failing[:1], ids)
    assert (mail.gauge(), video.gauge()) == (1, None)


def test_two_failing_queues_each_have_one_trial(mail: Queue, video: Queue, leader: Redelivery) -> None:
    ids = [fail_all(queue, leader, MANY) for queue in (mail, video)]
    assert leader.run_once() == 2
    assert [mail.pop(), video.pop()] == [ids[0][:1], ids[1][:1]]


def test_a_failed_trial_lets_the_next_retry_through(
    mail: Queue, leader: Redelivery, failing: list[int]
) -> None:
    for expected in failing + failing[:1]:
        assert leader.run_once() == 1
        assert mail.pop() == [expected]
        mail.fail(expected)


def test_a_deferred_trial_lets_the_next_retry_through(
    mail: Queue, leader: Redelivery, failing: list[int]
) -> None:
    leader.run_once()
    (on_trial,) = mail.pop()
    mail.defer(on_trial)
    assert leader.run_once() == 1
    assert mail.pop() == [failing[1]]


def test_a_dead_trial_lets_the_next_retry_through(
    mail: Queue, leader: Redelivery, failing: list[int]
) -> None:
    leader.run_once()
    (on_trial,) = mail.pop()
    mail.bury(on_trial)
    assert leader.run_once() == 1
    assert mail.pop() == [failing[1]]


def test_the_next_retry_follows_after_a_trial_lost_its_worker(
    mail: Queue, leader: Redelivery, failing: list[int]
) -> None:
    leader.run_once()
    (on_trial,) = mail.pop()
    mail.lose_the_worker(on_trial)
    assert leader.run_once() == 2
    assert mail.pop() == [on_trial, failing[1]]
    assert leader.run_once() == 0


def test_the_trial_is_the_retry_that_has_been_due_longest(mail: Queue, leader: Redelivery) -> None:
    ids = mail.stage(MANY)
    leader.enqueuer.drain()
    mail.pop()
    for wait, job_id in enumerate(ids):
        mail.fail(job_id, wait_seconds=-wait)
    leader.run_once()
    assert mail.pop() == ids[-1:]


def test_a_retry_that_is_not_due_is_not_let_through(mail: Queue, leader: Redelivery) -> None:
    ids = mail.stage(MANY)
    leader.enqueuer.drain()
    mail.pop()
    mail.fail(*ids, wait_seconds=LATER_SECONDS)
    assert leader.run_once() == 0
    assert (mail.gauge(), mail.is_failing()) == (1, True)


def test_a_new_leader_lets_one_more_retry_through(mail: Queue) -> None:
    with new_leader(mail) as (_, first):
        ids = fail_all(mail, first, MANY)
        first.run_once()
        assert mail.pop() == ids[:1]
        mail.claim(ids[0])
    with new_leader(mail) as (_, second):
        assert second.run_once() == 1
        assert mail.pop() == ids[1:2]
        assert second.run_once() == 0
        mail.finish(ids[1])
        assert second.run_once() == MANY - 2


def test_the_gauge_and_one_log_line_follow_each_change(
    mail: Queue, leader: Redelivery, failing: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert mail.gauge() is None
    for _ in range(3):
        leader.run_once()
        assert (mail.gauge(), mail.is_failing()) == (1, True)
    mail.finish(failing[0])
    leader.run_once()
    assert (mail.gauge(), mail.is_failing()) == (0, False)
    assert (events(caplog, "queue_failing"), events(caplog, "queue_recovered")) == (["mail"], ["mail"])


def test_a_queue_without_remaining_retries_is_no_longer_failing(mail: Queue, leader: Redelivery) -> None:
    ids = fail_all(mail, leader, MANY)
    for job_id in ids:
        leader.run_once()
        assert mail.gauge() == 1
        mail.bury(job_id)
    leader.run_once()
    assert mail.gauge() == 0


def test_a_new_leader_does_not_inherit_the_gauge(mail: Queue) -> None:
    with new_leader(mail) as (_, first):
        fail_all(mail, first, MANY)
        first.run_once()
        assert mail.gauge() == 1
    query(mail.database_url, "DELETE FROM inflight_jobs")
    with new_leader(mail) as (_, second):
        second.run_once()
        assert mail.gauge() is None


def test_status_reports_a_queue_as_failing_during_a_trial(
    mail: Queue, leader: Redelivery, failing: list[int]
) -> None:
    leader.run_once()
    mail.claim(failing[0])
    assert mail.is_failing()


@pytest.mark.usefixtures("processes")
def test_all_jobs_finish_once_the_failing_queues_target_recovers(database_url: str, redis_url: str) -> None:
    jobs_for_tests.create_effects(database_url)
    env = environment(database_url, redis_url, DRAIN_JOBS=jobs_for_tests.MODULE, PYTHONPATH=str(ROOT))
    ids = stage_jobs(database_url, 2 * MANY, job=jobs_for_tests.fail_until_go.job_name)
    with leading(env) as leader, drain_command("work", env=env):
        wait_until(lambda: leader.events("queue_failing"), PATIENCE_SECONDS)
        jobs_for_tests.leave_effect(database_url, "go")
        wait_until(lambda: ids_in(database_url, "finished_jobs") == ids, PATIENCE_SECONDS)
        wait_until(lambda: leader.events("queue_recovered"), PATIENCE_SECONDS)


def test_many_retries_of_a_working_queue_are_let_through_in_slices(mail: Queue, leader: Redelivery) -> None:
    ids = mail.stage(2_500)
    leader.enqueuer.drain()
    query(
        mail.database_url, "UPDATE inflight_jobs SET next_run_at = now() - interval '1 s', fencing_token = 1"
    )
    mail.pop()
    assert leader.run_once() == len(ids)
    assert sorted(mail.pop()) == ids


def test_a_queue_without_any_finish_is_queried_correctly(mail: Queue, leader: Redelivery) -> None:
    fail_all(mail, leader, 1)
    with closing(postgres.connect(mail.database_url, "test")) as connection:
        (found,) = waiting.retrying_queues(connection)
    assert (found.queue, found.due, found.last_finish, found.failing) == ("mail", True, None, False)


@pytest.mark.parametrize("time", ["infinity", "-infinity"])
def test_a_finish_at_an_impossible_time_does_not_stop_the_leader(
    mail: Queue, leader: Redelivery, time: str
) -> None:
    (job_id,) = fail_all(mail, leader, 1)
    query(
        mail.database_url,
        "INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "moved_at, claimed_at, finished_at, attempts, fencing_token) SELECT id + 1, job_name, job_args, job_kwargs, "
        "queue, 0, now(), now(), now(), now(), %s::timestamptz, 1, 1 FROM inflight_jobs",
        time,
    )
    query(mail.database_url, "UPDATE inflight_jobs SET next_run_at = now() - interval '1 s'")
    mail.pop()
    assert leader.run_once() == 1
    assert mail.pop() == [job_id]
