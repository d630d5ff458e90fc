"""`drain work` claims and finishes many jobs at a time; each of them is still one that can be told from the others."""

import ctypes
import os
import signal
from collections import Counter

import psycopg
import pytest
from redis import Redis

from drain.embedded import EmbeddedRedis
from drain.tables import claims, dead as dead_jobs
from drain.tables.dead import Selection
from tests import jobs_in_batches as jobs
from tests.helpers import (
    PATIENCE_SECONDS,
    ROOT,
    deliveries,
    end,
    impatient,
    leading,
    pushed,
    pushed_jobs,
    query,
    rq_worker,
    wait_until,
)
from tests.worker_processes import Yard, children, kill_worker, sleeps, threads

MANY = 300


def test_hundreds_of_jobs_finish_once_and_only_dead_ones_stay_in_redis(yard: Yard) -> None:
    ids = yard.pushed(jobs.note_in_transaction, *map(str, range(10)))
    ids += yard.pushed("tests.unheard.of", *range(5), max_attempts=1)
    ids += yard.pushed(jobs.note, *map(str, range(10, MANY)))
    with yard.working("--burst", "--processes", "2") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids[:10] + ids[15:])
    assert yard.all_are("dead_jobs", ids[10:15])
    assert Counter(yard.effects()) == Counter(map(str, range(MANY)))
    # A process that is held up gives back what it has not begun: claimed again, and still the first attempt.
    assert query(yard.database_url, "SELECT DISTINCT attempts FROM finished_jobs") == [(1,)]
    with yard.redis() as client:
        kept = list(client.scan_iter("rq:job:*"))
        assert len(kept) == 5
        assert all(client.hget(key, "status") == b"failed" and client.ttl(key) > 0 for key in kept)
        assert not list(client.scan_iter("*:intermediate"))


LARGEST = 2**63 - 1


def test_an_unclaimable_row_is_dead_with_the_reason_and_its_neighbours_run(yard: Yard) -> None:
    ids = yard.pushed(jobs.note, *map(str, range(20)))
    query(yard.database_url, "UPDATE inflight_jobs SET fencing_token = %s WHERE id = %s", LARGEST, ids[7])
    with yard.working("--burst", "--prefetch", "20") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    dead = yard.row(ids[7])
    assert (dead["place"], dead["reason"]) == ("dead_jobs", "unreadable")
    assert "out of range" in dead["explanation"]
    assert yard.all_are("finished_jobs", ids[:7] + ids[8:])
    with psycopg.connect(yard.database_url) as connection:
        assert dead_jobs.revive(connection, Selection()) == 1
    yard.push()
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.place(ids[7]) == "finished_jobs"


def test_jobs_of_a_queue_begin_in_order(yard: Yard) -> None:
    labels = [str(number) for number in range(40)]
    yard.pushed(jobs.note, *labels)
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.effects() == labels


def test_jobs_behind_a_slow_job_are_given_back_to_a_free_worker(yard: Yard) -> None:
    slow = yard.pushed(jobs.wait_for_go, "slow")
    others = yard.pushed(jobs.note, *map(str, range(9)))
    with yard.working("--prefetch", "10") as first:
        wait_until(lambda: "slow" in yard.effects(), PATIENCE_SECONDS)
        # The tenth is begun by nobody else: the first worker has them all in hand.
        wait_until(lambda: len(pushed_jobs(yard.redis_url)) == 9, PATIENCE_SECONDS)
        assert pushed_jobs(yard.redis_url) == others
        assert query(
            yard.database_url,
            "SELECT DISTINCT attempts, batched, claimed_at, lease_expires_at FROM inflight_jobs WHERE id <> %s",
            slow[0],
        ) == [(0, False, None, None)]
        with yard.working("--burst") as second:
            assert second.wait(PATIENCE_SECONDS) == 0
        assert yard.all_are("finished_jobs", others)
        assert yard.place(slow[0]) == "inflight_jobs"
        yard.say("go")
        yard.wait_for("finished_jobs", slow)
        assert end(first) == 0
    assert [effect for effect in yard.effects() if effect != "go"] == ["slow", *map(str, range(9))]


def test_a_known_slow_job_is_claimed_alone(yard: Yard) -> None:
    """By default: nothing is in hand behind it, so nothing has to be given back."""
    slow = yard.pushed(jobs.wait_for_go, "slow")
    others = yard.pushed(jobs.note, *map(str, range(5)))
    with yard.working() as command:
        wait_until(lambda: "slow" in yard.effects(), PATIENCE_SECONDS)
        assert pushed_jobs(yard.redis_url) == others
        yard.say("go")
        yard.wait_for("finished_jobs", slow + others)
        assert end(command) == 0


# --- when it dies


def test_only_the_running_job_is_charged_when_a_batch_dies(yard: Yard) -> None:
    before = yard.pushed(jobs.note, "a", "b")
    killer = yard.pushed(jobs.kill_the_process_once, "killer")
    after = yard.pushed(jobs.note, "c", "d")
    with leading(yard.env()), yard.working("--prefetch", "5") as command:
        yard.wait_for("finished_jobs", before + killer + after)
        (died,) = command.events("worker_died")
        assert "was killed by SIGKILL" in died["message"]
        assert end(command) == 0
    assert Counter(yard.effects()) == Counter({"a": 1, "b": 1, "killer": 2, "c": 1, "d": 1})
    finished = {id_: yard.row(id_) for id_ in before + killer + after}
    assert [finished[id_]["attempts"] for id_ in before + after] == [1, 1, 1, 1]
    assert finished[killer[0]]["attempts"] == 2
    assert "its worker process was killed by SIGKILL" in finished[killer[0]]["last_error"]["message"]


def test_a_job_that_kills_its_processes_dies_without_harming_others(yard: Yard) -> None:
    killer = yard.pushed(jobs.kill_the_process, "killer")
    others = yard.pushed(jobs.note, *map(str, range(9)))
    with leading(yard.env()), yard.working("--prefetch", "10") as command:
        yard.wait_for("dead_jobs", killer)
        yard.wait_for("finished_jobs", others)
        assert end(command) == 0
    assert Counter(yard.effects()) == Counter({"killer": 2} | {str(number): 1 for number in range(9)})
    assert (yard.row(killer[0])["reason"], yard.row(killer[0])["attempts"]) == ("failed", 2)
    assert query(yard.database_url, "SELECT DISTINCT attempts FROM finished_jobs") == [(1,)]


def test_a_batch_lost_with_its_machine_runs_singly_and_is_not_charged(yard: Yard) -> None:
    running = yard.pushed(jobs.wait_for_go, "running")
    waiting = yard.pushed(jobs.note, "a", "b")
    # What waits is not given back before the test kills the worker.
    patient = impatient({"drain.workers.process.fetcher._LONGEST_WAIT_SECONDS": 600})
    with yard.working("--prefetch", "3", **patient) as command:
        wait_until(lambda: "running" in yard.effects(), PATIENCE_SECONDS)
        held = "SELECT count(*) FROM inflight_jobs WHERE batched AND attempts = 0 AND fencing_token = 1"
        ((in_batch,),) = query(yard.database_url, held)
        command.kill()
        command.wait(PATIENCE_SECONDS)
    assert in_batch == 3
    query(yard.database_url, "UPDATE inflight_jobs SET lease_expires_at = now() - interval '1 ms'")
    yard.redeliver()
    assert sorted(pushed_jobs(yard.redis_url)) == running + waiting
    with psycopg.connect(yard.database_url, autocommit=True) as connection:
        # Together they cannot be claimed any more.
        asked = deliveries(connection, running + waiting)
        assert claims.claim_many(connection, asked, worker="w", limits={}) == []
        assert claims.left_to_claim(connection, asked) == {*running, *waiting}
    yard.say("go")
    with yard.working("--burst", "--prefetch", "3") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert Counter(yard.effects()) == Counter(["running", "running", "a", "b", "go"])
    assert query(yard.database_url, "SELECT DISTINCT attempts, fencing_token FROM finished_jobs") == [(1, 2)]


def test_workers_of_a_killed_supervisor_finish_their_jobs_and_stop(yard: Yard) -> None:
    running = yard.pushed(jobs.wait_for_go, "running")
    with yard.working("--processes", "2") as command:
        wait_until(lambda: "running" in yard.effects(), PATIENCE_SECONDS)
        pids = children(command)
        os.kill(command.pid, signal.SIGKILL)
        command.wait(PATIENCE_SECONDS)
        yard.say("go")
        yard.wait_for("finished_jobs", running)
        wait_until(lambda: not any(is_alive(pid) for pid in pids), PATIENCE_SECONDS)
    # Once, and by the attempt that was under way.
    assert yard.effects() == ["running", "go"]
    assert (yard.row(running[0])["attempts"], yard.row(running[0])["fencing_token"]) == (1, 1)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- timeouts


def test_a_job_that_takes_too_long_is_interrupted_and_the_next_ones_run(yard: Yard) -> None:
    slow = yard.pushed(jobs.sleep_too_long, "slow", "slow too")
    others = yard.pushed(jobs.note, "a")
    with yard.working("--burst", "--prefetch", "3") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("started")) == 1
    assert yard.all_are("finished_jobs", others)
    for job_id in slow:
        assert "timeout of 1 s" in yard.row(job_id)["explanation"]


def test_killing_an_unyielding_job_does_not_charge_its_neighbours(
    yard: Yard,
) -> None:
    stubborn = yard.pushed(jobs.never_yield, "stubborn")
    others = yard.pushed(jobs.note, *map(str, range(5)))
    with yard.working("--prefetch", "6", **KILLED_SOON) as command:
        yard.wait_for("finished_jobs", others)
        yard.wait_for("dead_jobs", stubborn)
        assert command.events("killed")
        assert end(command) == 0
    assert query(yard.database_url, "SELECT DISTINCT attempts FROM finished_jobs") == [(1,)]
    assert "was killed by SIGKILL" in yard.row(stubborn[0])["explanation"]
    assert Counter(yard.effects()) == Counter(["stubborn", *map(str, range(5))])


KILLED_SOON = impatient({"drain.workers.exits.KILL_AFTER_SECONDS": 0.5})


# --- stops


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopping_worker_finishes_its_job_and_gives_the_others_back(
    yard: Yard, number: signal.Signals
) -> None:
    running = yard.pushed(jobs.wait_for_go, "running")
    waiting = yard.pushed(jobs.note, *map(str, range(4)))
    with yard.working("--prefetch", "5") as command:
        wait_until(lambda: "running" in yard.effects(), PATIENCE_SECONDS)
        command.send_signal(number)
        wait_until(lambda: pushed_jobs(yard.redis_url) == waiting, PATIENCE_SECONDS)
        assert command.poll() is None
        yard.say("go")
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.place(running[0]) == "finished_jobs"
    assert query(
        yard.database_url,
        "SELECT DISTINCT attempts, lease_expires_at, claimed_at, batched FROM inflight_jobs",
    ) == [(0, None, None, False)]


@pytest.mark.parametrize("how", ["a second signal", "the end of its grace"])
def test_a_job_that_outlasts_the_grace_is_interrupted_and_retried(yard: Yard, how: str) -> None:
    (job_id,) = yard.pushed(jobs.wait_for_go, "running")
    grace = "600" if how == "a second signal" else "0.1"
    with yard.working("--grace-seconds", grace) as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        if how == "a second signal":
            wait_until(lambda: command.events("stopping"), PATIENCE_SECONDS)
            command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_SECONDS) == 0
    row = yard.row(job_id)
    assert row["place"] == "inflight_jobs"
    assert (row["attempts"], row["interruptions"], row["lease_expires_at"]) == (0, 1, None)
    assert row["last_error"]["type"] == "drain.workers.errors.WorkerStoppedError"


def test_a_worker_that_is_killed_while_it_stops_leaves_nothing_behind(yard: Yard) -> None:
    """Nobody takes its place, so the supervisor sees to what it held."""
    (stubborn,) = yard.pushed(jobs.never_yield, "stubborn")
    waiting = yard.pushed(jobs.note, "a", "b")
    with yard.working("--prefetch", "3", "--grace-seconds", "600") as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        wait_until(lambda: pushed_jobs(yard.redis_url) == waiting, PATIENCE_SECONDS)
        kill_worker(command)
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.place(stubborn) == "dead_jobs"


# --- processes


def test_the_requested_number_of_processes_run_and_dead_ones_are_replaced(yard: Yard) -> None:
    with yard.working("--processes", "3") as command:
        wait_until(lambda: len(children(command)) == 3, PATIENCE_SECONDS)
        victim = min(children(command))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(children(command)) == 3 and victim not in children(command), PATIENCE_SECONDS)
        # Told to stop before it has logged the fourth, it would not.
        wait_until(lambda: len(command.events("started")) == 4, PATIENCE_SECONDS)
        (died,) = command.events("worker_died")
        assert f"pid {victim}) was killed by SIGKILL" in died["message"]
        assert end(command) == 0
        assert len(command.events("started")) == 4


def test_an_idle_process_stops_even_if_its_main_thread_missed_the_signal(yard: Yard) -> None:
    """As if it came between the main thread's last look and its sleep, which no signal ends afterwards."""
    with yard.working() as command:
        (pid,) = wait_until(lambda: children(command), PATIENCE_SECONDS)
        others = wait_until(lambda: threads(pid) - {pid}, PATIENCE_SECONDS)
        wait_until(lambda: sleeps(pid), PATIENCE_SECONDS)
        ctypes.CDLL(None).tgkill(pid, min(others), signal.SIGTERM)
        wait_until(lambda: command.events("replaced"), PATIENCE_SECONDS)
        assert end(command) == 0


def test_a_process_is_replaced_after_max_jobs(yard: Yard) -> None:
    ids = yard.pushed(jobs.note, *map(str, range(10)))
    with yard.working("--max-jobs", "4") as command:
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    workers = query(yard.database_url, "SELECT count(*) FROM finished_jobs GROUP BY finished_by ORDER BY 1")
    assert workers == [(2,), (4,), (4,)]


def test_a_process_that_takes_too_much_memory_is_replaced(yard: Yard) -> None:
    with yard.working("--max-memory", "400") as command:
        (before,) = wait_until(lambda: children(command), PATIENCE_SECONDS)
        ids = yard.pushed(jobs.take_memory, 500)
        yard.wait_for("finished_jobs", ids)
        wait_until(lambda: children(command) not in ([], [before]), PATIENCE_SECONDS)
        assert command.events("replaced")
        more = yard.pushed(jobs.note, "afterwards")
        yard.wait_for("finished_jobs", more)
        assert end(command) == 0


# --- beside RQ's own


def test_a_mixed_fleet_finishes_each_job_once(yard: Yard) -> None:
    ids = yard.pushed(jobs.note, *map(str, range(120)))
    told = {
        "DRAIN_DATABASE_URL": yard.database_url,
        "DRAIN_JOBS": jobs.MODULE,
        "PYTHONPATH": str(ROOT),
    }
    with yard.working("--processes", "2", "--prefetch", "3") as command:
        rq_worker(yard.redis_url, "default", env=told)
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    assert Counter(yard.effects()) == Counter(map(str, range(120)))


def test_an_id_that_was_pushed_twice_runs_once(yard: Yard) -> None:
    ids = yard.pushed(jobs.note, "a", "b")
    with Redis.from_url(yard.redis_url) as client:
        client.rpush("rq:queue:default", *pushed(yard.redis_url), *pushed(yard.redis_url))
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)
    assert sorted(yard.effects()) == ["a", "b"]


def test_a_signal_to_all_processes_respects_the_grace(yard: Yard) -> None:
    """As service managers send it: the workers hear it twice, once of their supervisor."""
    running = yard.pushed(jobs.wait_for_go, "running") + yard.pushed(jobs.isolated_wait_for_go, "isolated")
    with yard.working("--processes", "2", "--prefetch", "1") as command:
        wait_until(lambda: {"running", "isolated"} <= set(yard.effects()), PATIENCE_SECONDS)
        os.killpg(command.pid, signal.SIGTERM)
        wait_until(lambda: command.events("stopping"), PATIENCE_SECONDS)
        yard.say("go")
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", running)


def test_a_worker_stops_even_if_redis_hangs(yard: Yard) -> None:
    with EmbeddedRedis() as redis:
        stalled = Yard(yard.database_url, f"{redis.url}&socket_timeout=2")
        ids = stalled.pushed(jobs.note, "before")
        with stalled.working() as command:
            stalled.wait_for("finished_jobs", ids)
            os.kill(redis.pid, signal.SIGSTOP)
            try:
                command.send_signal(signal.SIGTERM)
                assert command.wait(2 * PATIENCE_SECONDS) == 0
            finally:
                os.kill(redis.pid, signal.SIGCONT)
            assert not command.events("killed")
