"""The sleep of the leader: what it answers with a batch, and when it wakes up."""

import math
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from time import monotonic

import psycopg
import pytest
from redis import Redis

from drain.admission import arrivals
from drain.database import locks, postgres
from drain.enqueuer import cursor, lanes as lane_groups, leader, sleeper, transaction_rate, unblocker
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.sleeper import Sleeper
from drain.tables import keyed, lanes
from tests.helpers import ids_in, is_asleep, new_enqueuer, pushed_jobs, query, stage_jobs

# Longer than any of these tests takes.
LONG_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _times_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no search be put off because one was slow, and no sleep end because jobs came fast, on whatever machine."""
    monkeypatch.setattr(cursor, "_SCAN_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(sleeper, "_MOST_NOTIFIED", math.inf)


def sleep(enqueuer: Enqueuer, until: float | None = None) -> None:
    end = monotonic() + LONG_SECONDS if until is None else until
    Sleeper(enqueuer, Event(), poll_seconds=LONG_SECONDS).sleep(end)


class Naps(Event):
    """Notes how long the naps of a leader would be, and cuts them short."""

    def __init__(self) -> None:
        super().__init__()
        self.naps: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.naps.append(timeout or 0.0)
        return super().wait(min(timeout or 0.0, 1.0))


class LongWaitError(Exception):
    """The leader has nothing to drain, and would wait for longer."""


def when_it_waits(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Do one of these each time the leader waits; then end its sleep."""
    left = iter(steps)
    wait = leader.wait_for_notify

    def wait_and_do(connection: postgres.Connection, seconds: float) -> set[str]:
        step = next(left, None)
        if step is None:
            raise LongWaitError
        step()
        return wait(connection, seconds)

    monkeypatch.setattr(leader, "wait_for_notify", wait_and_do)


def test_jobs_that_are_staged_one_by_one_are_drained_in_one_sleep(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep: list[bool] = []

    def stage_one() -> None:
        stage_jobs(database_url)
        asleep.append(is_asleep(database_url))

    when_it_waits(monkeypatch, *[stage_one] * 4)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        with suppress(LongWaitError):
            sleep(enqueuer)
        assert asleep == [True] * 4
        assert pushed_jobs(redis_url) == ids_in(database_url, "inflight_jobs")
        assert len(ids_in(database_url, "inflight_jobs")) == 4
        assert not is_asleep(database_url)


def test_transactions_need_not_notify_while_jobs_come_fast(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeper, "_MOST_NOTIFIED", 0)
    monkeypatch.setattr(sleeper, "_COUNTED_SECONDS", 0.0)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        one = Sleeper(enqueuer, Event(), poll_seconds=LONG_SECONDS)
        when_it_waits(monkeypatch, lambda: stage_jobs(database_url), lambda: None)
        one.sleep(monotonic() + LONG_SECONDS)
        assert not locks_are_held(database_url)
        assert len(pushed_jobs(redis_url)) == 1
        stage_jobs(database_url)
        enqueuer.drain()
        # A nap: it neither takes the lock nor waits for a notification.
        with monkeypatch.context() as patch:
            patch.setattr(leader, "asleep", None)
            one.sleep(monotonic() + LONG_SECONDS)
        with pytest.raises(LongWaitError):
            one.sleep(monotonic() + LONG_SECONDS)


def test_the_leader_sleeps_while_a_list_is_full_however_fast_jobs_have_left(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeper, "_MOST_NOTIFIED", 0)
    monkeypatch.setattr(sleeper, "_COUNTED_SECONDS", 0.0)
    when_it_waits(monkeypatch)
    with new_enqueuer(database_url, redis_url, depth=10) as enqueuer:
        one = Sleeper(enqueuer, Event(), poll_seconds=LONG_SECONDS)
        stage_jobs(database_url, 11)
        enqueuer.drain()
        enqueuer._unblocker.transactions.per_second = 0.0
        with pytest.raises(LongWaitError):
            one.sleep(monotonic() + LONG_SECONDS)


def test_looks_show_how_fast_transactions_come(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_rate, "_SHORTEST_SECONDS", 0.0)
    monkeypatch.setattr(unblocker, "_IDLE_SECONDS", 0.0)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        for _ in range(2):
            enqueuer.look()
            stage_jobs(database_url)
        enqueuer.look()
        assert 0 < enqueuer.transactions_per_second < math.inf


def test_transactions_need_not_notify_while_they_are_fast_and_a_list_is_full(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeper, "_MOST_NOTIFIED", 0)
    monkeypatch.setattr(sleeper, "_COUNTED_SECONDS", 0.0)
    with new_enqueuer(database_url, redis_url, depth=10) as enqueuer:
        one = Sleeper(enqueuer, Event(), poll_seconds=LONG_SECONDS)
        stage_jobs(database_url, 11)
        enqueuer.drain()
        monkeypatch.setattr(leader, "asleep", None)
        one.sleep(monotonic() + LONG_SECONDS)


def locks_are_held(database_url: str) -> bool:
    with psycopg.connect(database_url, autocommit=True) as other:
        return not locks.try_lock(other, locks.ASLEEP)


def test_a_batch_too_small_for_all_jobs_ends_the_sleep(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 11)
    with new_enqueuer(database_url, redis_url, batch_size=10) as enqueuer:
        sleep(enqueuer)
    assert len(pushed_jobs(redis_url)) == 10


def test_a_list_that_keeps_filling_up_does_not_end_the_sleep(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 100)
    batches: list[int] = []
    taken = 0
    with new_enqueuer(database_url, redis_url, depth=30) as enqueuer, Redis.from_url(redis_url) as client:
        run_once = enqueuer.run_once

        def run_and_count() -> int:
            batches.append(run_once())
            return batches[-1]

        def work_off() -> None:
            nonlocal taken
            if sum(batches) == len(ids):
                raise LongWaitError
            # On a busy machine, an empty batch may come before the wait.
            if sum(batches) > taken:
                client.ltrim("rq:queue:default", 1, 0)
                taken = sum(batches)

        monkeypatch.setattr(enqueuer, "run_once", run_and_count)
        when_it_waits(monkeypatch, *[work_off] * 20)
        with suppress(LongWaitError):
            sleep(enqueuer)
    assert batches[0] == 30
    assert sum(batches) == len(ids)


def test_the_watermark_is_recorded_before_a_long_wait(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[int] = []

    def look() -> None:
        ((number,),) = query(database_url, "SELECT last_value FROM drain_pushed_up_to")
        recorded.append(number)

    stage_jobs(database_url, 3)
    when_it_waits(monkeypatch, look)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        with suppress(LongWaitError):
            sleep(enqueuer)
        look()
    assert recorded == [0, 3]


def test_a_scheduled_job_ends_a_wait(database_url: str, redis_url: str) -> None:
    (first, soon) = stage_jobs(database_url, 2)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        query(
            database_url,
            "UPDATE staged_jobs SET scheduled_at = clock_timestamp() + interval '0.2 s' WHERE id = %s",
            soon,
        )
        sleep(enqueuer)
        enqueuer.drain()
    assert pushed_jobs(redis_url) == [first, soon]


def test_a_locked_due_row_is_tried_again_after_a_pause(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeper, "_LOCKED_SECONDS", LONG_SECONDS)
    locked, soon = stage_jobs(database_url, 2)
    due = "UPDATE staged_jobs SET staged_at = staged_at - interval '1 h', scheduled_at = {} WHERE id = %s"
    query(database_url, due.format("now()"), locked)
    pauses: list[float] = []
    wait = leader.wait_for_notify

    def note(connection: postgres.Connection, seconds: float) -> set[str]:
        pauses.append(seconds)
        return wait(connection, min(seconds, 1.0))

    monkeypatch.setattr(leader, "wait_for_notify", note)
    with (
        new_enqueuer(database_url, redis_url) as enqueuer,
        psycopg.connect(database_url) as other,
    ):
        other.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", [locked])
        query(database_url, due.format("clock_timestamp() + interval '0.5 s'"), soon)
        sleep(enqueuer)
        assert 0 < pauses[-1] <= 0.5
        assert enqueuer.drain() == 1
        assert pushed_jobs(redis_url) == [soon]
        sleep(enqueuer, monotonic() + 1.0)
        assert pauses[-1] > 0.5
        other.rollback()
        assert enqueuer.drain() == 1


def test_the_rows_of_a_small_batch_are_not_read_twice(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("rows that a search has read are read again")

    monkeypatch.setattr(lanes, "read_due", refuse)
    urgent = stage_jobs(database_url, lanes.FIRST_ROWS - 1)
    (elsewhere,) = stage_jobs(database_url, queue="mail")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert enqueuer.drain() == lanes.FIRST_ROWS
    assert pushed_jobs(redis_url) == urgent
    assert pushed_jobs(redis_url, queue="mail") == [elsewhere]


@pytest.mark.parametrize("rows", [lanes.FIRST_ROWS - 1, lanes.FIRST_ROWS, 3 * lanes.FIRST_ROWS])
@pytest.mark.parametrize("batch_size", [5, 1000])
def test_rows_leave_in_order_however_many_a_search_reads(
    database_url: str, redis_url: str, rows: int, batch_size: int
) -> None:
    ids = stage_jobs(database_url, rows)
    (first,) = stage_jobs(database_url, priority=-1)
    with new_enqueuer(database_url, redis_url, batch_size=batch_size) as enqueuer:
        assert enqueuer.drain() == rows + 1
    assert pushed_jobs(redis_url) == [first, *ids]


def test_a_job_that_matures_after_the_search_is_drained_in_order(database_url: str, redis_url: str) -> None:
    (ready,) = stage_jobs(database_url)
    (better,) = stage_jobs(database_url, priority=-1)
    query(
        database_url,
        "UPDATE staged_jobs SET scheduled_at = staged_at + interval '1 us' WHERE id = %s",
        better,
    )
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert enqueuer.drain() == 2
    assert pushed_jobs(redis_url) == [better, ready]


def test_a_skipped_row_stays_even_if_a_search_has_read_it(database_url: str, redis_url: str) -> None:
    left, taken = stage_jobs(database_url, 2)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer._due_rows.pass_over_row(left)
        enqueuer.drain()
    assert (pushed_jobs(redis_url), ids_in(database_url, "staged_jobs")) == ([taken], [left])


def drain_until_a_wait(enqueuer: Enqueuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do as a term does until it waits for a notification."""
    when_it_waits(monkeypatch)
    with suppress(LongWaitError):
        while True:
            if not enqueuer.drain(looks_again=False) or not enqueuer.may_leave_some:
                sleep(enqueuer)


def test_patient_rows_need_no_notification_after_a_few_urgent_ones(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged: list[int] = []

    def stage_both() -> None:
        staged.extend(stage_jobs(database_url))
        staged.extend(stage_jobs(database_url, priority=1))

    with new_enqueuer(database_url, redis_url) as enqueuer:
        when_it_waits(monkeypatch, stage_both)
        with suppress(LongWaitError):
            sleep(enqueuer)
            drain_until_a_wait(enqueuer, monkeypatch)
        assert pushed_jobs(redis_url) == staged


@pytest.mark.parametrize("batch_size", [1, 20])
def test_small_full_batches_follow_each_other_without_a_wait(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    ids = stage_jobs(database_url, 3 * batch_size)
    with new_enqueuer(database_url, redis_url, batch_size=batch_size) as enqueuer:
        drain_until_a_wait(enqueuer, monkeypatch)
    assert pushed_jobs(redis_url) == ids


def test_queues_not_read_by_a_batch_need_no_notification(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_groups, "_MOST_LANES", 2)
    for queue in ("mail", "search", "video"):
        stage_jobs(database_url, queue=queue)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert enqueuer.drain(looks_again=False) == 3


def test_empty_queues_do_not_hide_the_rows_of_another(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 3)
    stage_jobs(database_url, queue="mail")
    with new_enqueuer(database_url, redis_url, batch_size=1) as enqueuer:
        assert enqueuer.drain() == 4


def test_a_job_staged_in_an_idle_queue_with_rules_leaves_at_once(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_IDLE_SECONDS", LONG_SECONDS)
    query(database_url, "INSERT INTO queues (queue, running) VALUES ('default', 10)")
    ids: list[int] = []
    # Hints are spaced out.
    steps = [lambda: ids.extend(stage_jobs(database_url)), lambda: None, lambda: None]
    when_it_waits(monkeypatch, *steps)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
        with suppress(LongWaitError):
            sleep(enqueuer, monotonic() + 0.3)
    assert len(ids) == 1
    assert pushed_jobs(redis_url) == ids


def test_jobs_of_queues_without_rules_cost_no_look_for_those_with(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("hints are for queues with rules")

    monkeypatch.setattr(keyed, "recent_queues", refuse)
    ids: list[int] = []
    when_it_waits(monkeypatch, *[lambda: ids.extend(stage_jobs(database_url))] * 2)
    with new_enqueuer(database_url, redis_url) as enqueuer, suppress(LongWaitError):
        sleep(enqueuer)
    assert len(ids) == 2
    assert pushed_jobs(redis_url) == ids


def test_a_full_queue_triggers_no_batch_until_a_job_ends(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stage_jobs(database_url, 2)
    query(database_url, "INSERT INTO queues (queue, running) VALUES ('default', 1)")
    batches: list[int] = []
    with new_enqueuer(database_url, redis_url) as enqueuer:
        run_once = enqueuer.run_once

        def run_and_count() -> int:
            batches.append(run_once())
            return batches[-1]

        monkeypatch.setattr(enqueuer, "run_once", run_and_count)
        sleep(enqueuer, monotonic() + 0.5)
        assert ids_in(database_url, "inflight_jobs") == [first]
        assert sum(batches) == 1
        assert len(batches) <= 4
        query(database_url, "DELETE FROM inflight_jobs")
        sleep(enqueuer, monotonic() + 0.5)
        assert ids_in(database_url, "inflight_jobs") == [second]


def test_a_job_that_ends_during_a_nap_admits_the_next_one(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeper, "_FIRST_NAP_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(sleeper, "_LONGEST_NAP_SECONDS", LONG_SECONDS)
    first, second = stage_jobs(database_url, 2)
    query(database_url, "INSERT INTO queues (queue, running) VALUES ('default', 1)")
    insert = "INSERT INTO staged_jobs (job_name, queue) VALUES ('m.f', 'other')"
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as application:
        enqueuer.drain()
        assert ids_in(database_url, "inflight_jobs") == [first]
        # While a transaction that stages is open, others may not notify: the leader naps.
        application.execute(insert)
        query(database_url, "DELETE FROM inflight_jobs")
        stop = Naps()
        Sleeper(enqueuer, stop, poll_seconds=LONG_SECONDS).sleep(monotonic() + LONG_SECONDS)
        assert 0 <= max(stop.naps) < LONG_SECONDS
        enqueuer.drain()
        assert ids_in(database_url, "inflight_jobs") == [second]


def test_an_idle_queue_with_rules_is_not_polled_repeatedly(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_IDLE_SECONDS", LONG_SECONDS)
    query(database_url, "INSERT INTO queues (queue, running) VALUES ('default', 10)")
    batches: list[int] = []
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
        run_once = enqueuer.run_once
        monkeypatch.setattr(enqueuer, "run_once", lambda: batches.append(run_once()))
        sleep(enqueuer, monotonic() + 0.2)
    # The second one after a hint that had to be put off.
    assert 1 <= len(batches) <= 2


def test_rows_need_no_notification_while_a_poisoned_row_shrinks_batches(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 8)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer._batches._size.shrink(2)
        drain_until_a_wait(enqueuer, monkeypatch)
    assert pushed_jobs(redis_url) == ids


def test_no_second_batch_follows_a_lone_row_before_the_wait(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    # Another machine may be slow: no search counts as one that steps over dead rows.
    monkeypatch.setattr(cursor, "_SCAN_SECONDS", LONG_SECONDS)
    when_it_waits(monkeypatch, *[lambda: stage_jobs(database_url)] * 3)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        run_once = enqueuer.run_once

        def run_and_note() -> int:
            batches.append(run_once())
            return batches[-1]

        monkeypatch.setattr(enqueuer, "run_once", run_and_note)
        with suppress(LongWaitError):
            sleep(enqueuer)
    assert batches == [0, 1, 1, 1]
