"""PostgreSQL or Redis is away: rows stay, one line is logged, and it goes on by itself."""

import logging
import os
import re
import signal
from contextlib import suppress

import pytest
from redis import Redis
from rq import Queue
from rq.job import JobStatus

from drain.config import Settings
from drain.database import postgres
from drain.embedded import Services
from drain.enqueuer.redelivery import Redelivery
from drain.workers import command
from tests import plain_probes as probes
from tests.helpers import (
    NAMESPACE,
    Command,
    ask,
    drain_command,
    end,
    environment,
    free_port,
    ids_in,
    leading,
    new_enqueuer,
    pushed_jobs,
    query,
    stage_jobs,
    wait_until,
)
from tests.worker_processes import Yard

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def env(own: Services) -> dict[str, str]:
    # No worker takes what is pushed, so a list with a bound would not hold all jobs.
    env = environment(own.database_url, own.redis_url) | {"DRAIN_DEPTH": "0"}
    # `/readyz` tells of an outage at once.
    return env | {"DRAIN_HEALTH_GRACE": "0", "DRAIN_HEALTH_RECOVERY": "0"}


def went_away_once(process: Command) -> bool:
    return (len(process.events("down")), len(process.events("up"))) == (1, 2)


def failures(port: int, store: str) -> float:
    found = re.search(rf'drain_failures_total{{store="{store}"}} (\S+)', ask(port, "/metrics")[1])
    return float(found[1]) if found else 0.0


def test_rows_wait_during_a_redis_outage_and_are_pushed_afterwards(
    own: Services, env: dict[str, str]
) -> None:
    port = free_port()
    with leading(env, "--metrics-port", str(port)) as process:
        own.redis.stop()
        ids = stage_jobs(own.database_url, 3)
        wait_until(lambda: failures(port, "redis") >= 3)
        assert ask(port, "/readyz")[0] == 503
        assert ask(port, "/healthz")[0] == 200
        own.redis.start()
        ids += stage_jobs(own.database_url, 3)

        wait_until(lambda: set(pushed_jobs(own.redis_url)) == set(ids))
        wait_until(lambda: went_away_once(process))
        assert ask(port, "/readyz")[0] == 200
        assert "Redis" in process.events("down")[0]["message"]


def test_a_redis_that_returns_empty_gets_its_jobs_again(own: Services, env: dict[str, str]) -> None:
    with leading(env) as process:
        ids = stage_jobs(own.database_url, 3)
        wait_until(lambda: pushed_jobs(own.redis_url) == ids)
        own.redis.stop()
        wait_until(lambda: process.events("down"))
        own.redis.start()

        wait_until(lambda: pushed_jobs(own.redis_url) == ids)


def test_a_restart_of_postgres_is_waited_for(own: Services, env: dict[str, str]) -> None:
    with leading(env) as process:
        ids = stage_jobs(own.database_url, 3)
        wait_until(lambda: pushed_jobs(own.redis_url) == ids)
        # Or else the next leader cannot know, and pushes them again.
        wait_until(lambda: not not_pushed(own))
        own.postgres.stop()
        wait_until(lambda: process.events("down"))
        own.postgres.start()
        ids += stage_jobs(own.database_url, 3)

        wait_until(lambda: pushed_jobs(own.redis_url) == ids)
        # It is told only once a batch has got through.
        wait_until(lambda: went_away_once(process))
        assert "PostgreSQL" in process.events("down")[0]["message"]


def test_a_crash_of_postgres_loses_nothing(own: Services, env: dict[str, str]) -> None:
    with leading(env) as process:
        ids = stage_jobs(own.database_url, 500)
        own.postgres.kill()
        own.postgres.start()
        ids += stage_jobs(own.database_url, 3)

        wait_until(lambda: set(pushed_jobs(own.redis_url)) == set(ids))
        wait_until(lambda: ids_in(own.database_url, "staged_jobs") == [])
        assert process.poll() is None
    assert ids_in(own.database_url, "inflight_jobs") == ids


def test_servers_unavailable_at_the_start_are_waited_for(own: Services, env: dict[str, str]) -> None:
    ids = stage_jobs(own.database_url, 3)
    own.redis.stop()
    own.postgres.stop()
    with drain_command("run", "--metrics-port", "0", env=env) as process:
        wait_until(lambda: process.events("down"))
        own.postgres.start()
        own.redis.start()

        wait_until(lambda: pushed_jobs(own.redis_url) == ids)
        assert len(process.events("down")) == 1


@pytest.mark.contrib
def test_plain_rq_jobs_run_during_a_postgres_outage(own: Services) -> None:
    yard = Yard(own.database_url, own.redis_url)
    with Redis.from_url(own.redis_url) as client, yard.working() as process:
        queue = Queue("default", connection=client)
        done = queue.enqueue(probes.note, "before")
        wait_until(lambda: done.get_status() is JobStatus.FINISHED)
        own.postgres.stop()
        # No worker can claim it for now.
        client.rpush("rq:queue:default", f"{NAMESPACE}-9999-9999")
        wait_until(lambda: process.events("down"))
        plain = [queue.enqueue(probes.note, str(number)) for number in range(3)]

        wait_until(lambda: {job.get_status() for job in plain} == {JobStatus.FINISHED})
        assert client.llen("rq:queue:default") == 1
        assert not process.events("up")


READ_ONLY = """
SET transaction_read_only = off;
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = {}', current_database()); END $$
"""


def test_a_server_that_goes_away_while_a_worker_starts_is_waited_for(
    database_url: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused = "postgresql://127.0.0.1:1/nowhere"
    looks: list[str] = []
    reasons: list[str | None] = []

    def look() -> None:
        looks.append(refused if not looks else database_url)
        postgres.connect(looks[-1], "tests").close()

    settings = Settings(database_url=database_url, redis_url=redis_url)
    with caplog.at_level(logging.WARNING):
        command._look_once_available(settings, reasons.append, look)
    assert looks == [refused, database_url]
    assert reasons == [None, None]
    assert [getattr(record, "event", None) for record in caplog.records] == ["down"]


def test_a_temporarily_read_only_database_is_waited_for(database_url: str, redis_url: str) -> None:
    """As it is after a failover to a replica that has not been promoted yet."""
    ids = stage_jobs(database_url, 3)
    query(database_url, READ_ONLY.format("on"))
    with drain_command("run", "--metrics-port", "0", env=environment(database_url, redis_url)) as process:
        wait_until(lambda: process.events("down") or process.poll() is not None)
        assert process.poll() is None
        query(database_url, READ_ONLY.format("off"))
        wait_until(lambda: pushed_jobs(redis_url) == ids)


def not_pushed(own: Services) -> int:
    ((count,),) = query(
        own.database_url,
        # Not the difference of the two sequences: a batch that is not committed has taken its numbers.
        "SELECT count(*) FROM inflight_jobs, drain_pushed_up_to WHERE delivery > last_value",
    )
    return int(count)


def moved_and_not_pushed(own: Services) -> bool:
    """Whether the leader gets that far within a second, with a Redis that does not answer."""
    with suppress(AssertionError):
        return bool(wait_until(lambda: not_pushed(own), seconds=1))
    return False


def test_jobs_moved_but_not_pushed_before_a_leader_died_are_pushed(
    own: Services, env: dict[str, str]
) -> None:
    ids: list[int] = []
    with leading(env | {"DRAIN_BATCH_SIZE": "10"}) as process:
        try:
            # The leader may be asking Redis for something else just then: once more, in that case.
            while not (ids and moved_and_not_pushed(own)):
                os.kill(own.redis.pid, signal.SIGCONT)
                wait_until(lambda: set(pushed_jobs(own.redis_url)) == set(ids))
                # Until the leader has noted its last push, that batch would pass for one that was not pushed.
                wait_until(lambda: not (ids and not_pushed(own)))
                os.kill(own.redis.pid, signal.SIGSTOP)
                ids.extend(stage_jobs(own.database_url, 50))
            end(process, signal.SIGKILL)
        finally:
            os.kill(own.redis.pid, signal.SIGCONT)

    with new_enqueuer(own.database_url, own.redis_url) as successor:
        # Only now is the session of the leader over, which may have committed another batch as it was killed.
        left = not_pushed(own)
        assert left > 0
        assert Redelivery(successor).recover() == left
        successor.drain()
    assert set(pushed_jobs(own.redis_url)) == set(ids)
    assert ids_in(own.database_url, "inflight_jobs") == ids
