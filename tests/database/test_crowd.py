"""Very many names of queues: the work of a batch stays bounded, and other queues do not wait behind them."""

from drain.enqueuer.crowd import MOST_KNOWN
from tests.helpers import new_enqueuer, query, stage_jobs

MANY = 5000


def stage_crowd(database_url: str) -> None:
    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, queue) SELECT 'm.f', 'tenant-' || n FROM generate_series(1, %s) AS n",
        MANY,
    )


def staged(database_url: str, queue: str) -> int:
    ((number,),) = query(database_url, "SELECT count(*) FROM staged_jobs WHERE queue = %s", queue)
    return int(number)


def test_a_queue_that_is_in_use_does_not_wait_behind_a_crowd(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        stage_jobs(database_url, queue="used")
        enqueuer.drain()
        stage_crowd(database_url)
        enqueuer.run_once()
        stage_jobs(database_url, 10, queue="used")
        batches = 0
        while staged(database_url, "used"):
            assert enqueuer.run_once()
            batches += 1
            assert len(enqueuer.places) <= MOST_KNOWN
        # A batch has five rows of each lane.
        assert batches <= 2
        enqueuer.flush()


def test_each_lane_of_a_crowd_has_its_turn_and_a_new_one_too(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url, batch_size=700) as enqueuer:
        stage_crowd(database_url)
        enqueuer.run_once()
        stage_jobs(database_url, 10, queue="zz-new")
        stage_jobs(database_url, 10, queue="zz-patient", priority=5)
        assert enqueuer.drain() > MANY - 700
        assert query(database_url, "SELECT count(*) FROM inflight_jobs") == [(MANY + 20,)]
        # The crowd is gone, and a search finds a lane with its first rows again.
        stage_jobs(database_url, queue="afterwards")
        assert enqueuer.drain() == 1
        assert not enqueuer._due_rows._urgent.crowd
