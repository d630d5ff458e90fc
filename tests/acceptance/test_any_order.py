"""Whatever happens in whatever order, the audit holds and each committed job is finished once.

After each step: each committed job is in exactly one table, no queue and no key has begun a job beyond its limit,
nothing that is paused is delivered once the leader has looked, and of each unique key one job waits for its first
attempt.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from drain import IdempotencyConflictError, cancel, failpoints, queues, stage
from drain.admission import admission, arrivals, hints, keyed_queue, ordering, retries, streams
from drain.admission.rules import Rate, Rules
from drain.audit import audit
from drain.database import postgres
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.housekeeping import ReturnedJobs
from drain.enqueuer.redelivery import Redelivery
from drain.enqueuer.ticker import Ticker
from drain.failpoints import FailurePoint
from drain.tables import changes, claims, dead, finishes, leases, outcomes
from drain.tables.changes import Change
from drain.tables.claims import Claim
from drain.tables.columns import DELIVERED
from drain.tables.pauses import IS_PAUSED
from drain.tables.selections import Selection
from drain.wire import Producer
from tests.helpers import NAMESPACE, deliveries, new_enqueuer, query, wait_until

QUEUES = ("a", "b")
# Few, so that they meet often.
WORKERS = ("w1", "w2")
KEY, OTHER = "acme", "globex"
RULES: tuple[Callable[[str], Rules], ...] = (
    Rules,
    lambda queue: Rules(queue, running=1),
    lambda queue: Rules(queue, running=3, running_per_key=1),
    lambda queue: Rules(queue, running_per_key=2, fair=True, weights={KEY: 2}),
    lambda queue: Rules(queue, ordered=True),
    lambda queue: Rules(queue, ordered=True, on_dead="skip", running=2),
    lambda queue: Rules(queue, running=2, aging_seconds=1.0),
    lambda queue: Rules(queue, rate=Rate(1000, 1), running=2),
)
UNIQUE = (None, None, "doc:1", "doc:2")
IDEMPOTENT = ("webhook:1", "webhook:2")
IN_AN_HOUR = timedelta(hours=1)
# Names of what is paused: queue, job and key.
PAUSES = (("a", None, None), ("b", None, KEY), (None, "m.f", None), (None, None, KEY))
ENDS = ("finish", "fail", "defer", "slow down", "be interrupted", "give up", "be killed")
TABLES = (
    "staged_jobs, inflight_jobs, finished_jobs, dead_jobs, stale_finishes, effects, crons, queue_pauses, queues, "
    "idempotency_keys"
)
ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback"}
# The suite tries the same few runs each time; set it to try many others.
EXAMPLES = int(os.environ.get("ANY_ORDER_EXAMPLES", "0"))
OVERDUE = (
    "UPDATE inflight_jobs SET "
    "lease_expires_at = CASE WHEN lease_expires_at IS NOT NULL THEN now() - interval '1 s' END, "
    "next_run_at = CASE WHEN next_run_at IS NOT NULL THEN now() - interval '1 s' END "
)


# All that was to come in these hours has come.
LATER = """
UPDATE staged_jobs SET staged_at = staged_at - interval '2 h', scheduled_at = scheduled_at - interval '2 h'
WHERE scheduled_at > now()
"""
EVERYWHERE = (
    "SELECT id FROM staged_jobs UNION ALL SELECT id FROM inflight_jobs "
    "UNION ALL SELECT id FROM finished_jobs UNION ALL SELECT id FROM dead_jobs"
)
RUNNING = (
    "SELECT queue, coalesce(key, ''), count(*) FROM inflight_jobs WHERE next_run_at IS NULL GROUP BY 1, 2"
)
STARTS_IN_A_PAUSE = f"SELECT id FROM inflight_jobs AS job WHERE {DELIVERED} AND {IS_PAUSED}"
NOT_UNIQUE = """
SELECT pg_catalog.array_agg(id) FROM inflight_jobs WHERE unique_key IS NOT NULL AND {condition}
GROUP BY job_name, unique_key HAVING count(*) > 1
"""
# Pauses of the leader between two looks, by which a run would depend on the time that its steps take.
PAUSES_OF_THE_LEADER = {
    admission: ["_FOLLOW_SECONDS"],
    arrivals: ["_HINT_PAUSE", "_SWEEP_PAUSE", "_IDLE_SECONDS"],
    hints: ["_PAUSE"],
    keyed_queue: ["_NAP_SECONDS", "_REST_SECONDS"],
    ordering: ["_PAUSE", "_ROUND_SECONDS"],
    retries: ["_PAUSE"],
    streams: ["_ASIDE_SECONDS"],
}
LEADERS = "SELECT FROM pg_stat_activity WHERE application_name = 'drain run' AND datname = current_database()"


class Killed(BaseException):
    """Stands for the end of the process, in the middle of a step."""


class AnyOrder(RuleBasedStateMachine):
    def __init__(self, database_url: str, redis_url: str, checked: list[set[int]]) -> None:
        super().__init__()
        self.checked = checked
        self.database_url, self.redis_url = database_url, redis_url
        self.client: Redis = Redis.from_url(redis_url)
        self.client.flushall()
        self.committed: set[int] = set()
        self.rolled_back: set[int] = set()
        self.open: list[tuple[psycopg.Connection, list[int]]] = []
        self.schedules: list[str] = []
        self.claims: list[Claim] = []
        self.tokens: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.once: dict[str, tuple[int, int]] = {}
        self.rules_of = {queue: Rules(queue) for queue in QUEUES}
        self.running: Counter[tuple[str, str | None]] = Counter()
        self.pauses_are_followed = True
        self.leadership = ExitStack()
        self.leader: tuple[Enqueuer, Redelivery] | None = None
        self.database = postgres.connect(database_url, "tests")
        self.query(f"TRUNCATE {TABLES}")

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self.database.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description is not None else []

    @initialize()
    def the_first_leader(self) -> None:
        self.lead()

    @rule(
        queue=st.sampled_from(QUEUES),
        priority=st.integers(0, 2),
        late=st.booleans(),
        max_attempts=st.sampled_from([0, 2]),
        unique_key=st.sampled_from(UNIQUE),
        keep=st.sampled_from(["first", "last"]),
        quiet=st.sampled_from([None, None, IN_AN_HOUR]),
    )
    def stage_in_a_new_transaction(
        self, queue: str, priority: int, late: bool, unique_key: str | None = None, **options: Any
    ) -> None:
        connection = psycopg.connect(self.database_url)
        options |= {"queue": queue, "priority": priority, "unique_key": unique_key}
        if unique_key is None:
            options |= {"keep": None, "quiet": None}
        ids = [stage(connection, "m.f", key=key, **options) for key in (KEY, OTHER, None)]
        if late:
            # Scheduled, and due by now.
            connection.execute(
                "UPDATE staged_jobs SET staged_at = now() - interval '2 h', scheduled_at = now() - interval '1 h' "
                "WHERE id = ANY (%s)",
                (ids,),
            )
        self.open.append((connection, ids))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9), commit=st.sampled_from([True, True, False]))
    def end_a_transaction(self, which: int, commit: bool) -> None:
        connection, ids = self.open.pop(which % len(self.open))
        if commit:
            connection.commit()
            self.committed.update(ids)
        else:
            connection.rollback()
            self.rolled_back.update(ids)
        connection.close()

    @rule(
        key=st.sampled_from(IDEMPOTENT),
        arg=st.sampled_from([1, 1, 2]),
        end=st.sampled_from(["commit", "die"]),
    )
    def stage_once(self, key: str, arg: int, end: str) -> None:
        known = self.once.get(key)

        def die(point: FailurePoint) -> None:
            if end == "die" and point is FailurePoint.STAGED_ONCE:
                raise Killed

        with suppress(Killed), hooked(die), self.database.transaction():
            try:
                job_id = stage(self.database, "m.f", [arg], queue="a", idempotency_key=key)
            except IdempotencyConflictError:
                assert known
                assert known[1] != arg
                return
        if end == "commit":
            assert known in (None, (job_id, arg))
            self.once[key] = (job_id, arg)
            self.committed.add(job_id)

    @rule()
    def time_passes(self) -> None:
        self.query(LATER)

    @rule(
        by=st.sampled_from(["ids", "queue", "key"]),
        which=st.integers(0, 9),
        end=st.sampled_from(["commit", "commit", "roll back", "die"]),
    )
    def cancel(self, by: str, which: int, end: str) -> None:
        ids = self.some_ids(which)

        def die(point: FailurePoint) -> None:
            if end == "die" and point is FailurePoint.CANCELLED:
                raise Killed

        with suppress(Killed), hooked(die), self.database.transaction(force_rollback=end == "roll back"):
            if by == "ids":
                cancelled = cancel(self.database, ids)
                assert not cancelled.unknown
            elif by == "queue":
                cancelled = cancel(self.database, queue="b", key=OTHER)
            else:
                cancelled = cancel(self.database, key=KEY)
        if end == "commit":
            assert set(cancelled.waiting + cancelled.running).isdisjoint(self.cancelled)
            self.cancelled.update(cancelled.waiting, cancelled.running)

    @rule(which=st.integers(0, 9))
    def revive(self, which: int) -> None:
        ids = [id_ for (id_,) in self.query("SELECT id FROM dead_jobs ORDER BY id")]
        if ids:
            job_id = ids[which % len(ids)]
            assert dead.revive(self.database, dead.Selection((job_id,))) == 1
            self.cancelled.discard(job_id)

    @rule(
        by_id=st.booleans(),
        which=st.integers(0, 9),
        queue=st.sampled_from([None, *QUEUES]),
        priority=st.sampled_from([None, -1, 1]),
        later=st.sampled_from([None, None, IN_AN_HOUR, -IN_AN_HOUR]),
        half=st.booleans(),
    )
    def move(
        self,
        by_id: bool,
        which: int,
        queue: str | None,
        priority: int | None,
        later: timedelta | None,
        half: bool,
    ) -> None:
        """As `drain jobs move` does, which may be killed between its two tables."""
        change = Change(queue, priority, None if later is None else datetime.now(UTC) + later)
        if any(part is not None for part in change):
            selection = Selection(ids=tuple(self.some_ids(which))) if by_id else Selection(key=KEY)
            changes.change_staged(self.database, selection, change)
            if change.reaches_deliveries and not half:
                changes.change_inflight(self.database, selection, change)

    def some_ids(self, which: int) -> list[int]:
        """A few of the jobs that are committed, at least one."""
        if not self.committed:
            self.stage_in_a_new_transaction("a", 0, late=False)
            self.end_a_transaction(-1, commit=True)
        return sorted(self.committed, reverse=True)[which : which + 3] or [max(self.committed)]

    @rule(queue=st.sampled_from(QUEUES), rules=st.integers(0, len(RULES) - 1))
    def set_rules(self, queue: str, rules: int) -> None:
        self.rules_of[queue] = RULES[rules](queue)
        queues.replace(self.database, self.rules_of[queue])

    @precondition(lambda self: self.leader)
    @rule(queue=st.sampled_from(QUEUES), rules=st.integers(1, len(RULES) - 1), as_retries=st.booleans())
    def begin_all_that_may(self, queue: str, rules: int, as_retries: bool) -> None:
        """More jobs than the rules let run, staged or as due retries, which would seldom come about step by step."""
        self.set_rules(queue, 0 if as_retries else rules)
        for _ in range(3):
            self.stage_in_a_new_transaction(queue, 0, late=False)
            self.end_a_transaction(-1, commit=True)
        self.drain()
        if as_retries:
            for _ in range(self.client.llen(f"rq:queue:{queue}")):
                self.claim(queue, WORKERS[0])
            for claim in [claim for claim in self.claims if claim.queue == queue]:
                self.end(claim, "defer")
            self.set_rules(queue, rules)
            self.redeliver()

    @rule(queue=st.sampled_from(QUEUES))
    def schedule_a_tick_that_has_come(self, queue: str) -> None:
        self.schedules.append(f"schedule {len(self.schedules)}")
        self.query(
            "INSERT INTO crons (name, job_name, cron, options, next_tick_at) "
            "VALUES (%s, 'm.f', '0 0 1 1 *', jsonb_build_object('queue', %s::text), now())",
            *(self.schedules[-1], queue),
        )

    @precondition(lambda self: self.leader)
    @rule()
    def tick(self) -> None:
        assert self.leader is not None
        try:
            Ticker(self.leader[0].connection).run_once()
        finally:
            rows = self.query("SELECT last_job_id FROM crons WHERE last_job_id IS NOT NULL")
            self.committed.update(id_ for (id_,) in rows)

    @precondition(lambda self: self.leader)
    @rule()
    def drain_a_batch(self) -> None:
        assert self.leader is not None
        self.leader[0].run_once()

    @precondition(lambda self: self.leader)
    @rule()
    def drain(self) -> None:
        assert self.leader is not None
        if self.open:
            self.end_a_transaction(0, commit=True)
        self.leader[0].drain()

    @precondition(lambda self: self.leader)
    @rule()
    def redeliver(self) -> None:
        assert self.leader is not None
        # Between two redeliveries it drains, and so follows the rules.
        self.leader[0].look()
        self.leader[1].run_once()
        self.pauses_are_followed = True

    @precondition(lambda self: self.leader)
    @rule()
    def settle_jobs_that_wait_again(self) -> None:
        assert self.leader is not None
        ReturnedJobs(self.leader[0].connection).run_once()
        condition = "lease_expires_at IS NULL"
        assert not self.query(NOT_UNIQUE.format(condition=condition))

    @rule(names=st.sampled_from(PAUSES))
    def pause(self, names: tuple[str | None, str | None, str | None]) -> None:
        queue, job, key = names
        queues.pause(self.database, queue, job=job, key=key)
        self.pauses_are_followed = False

    @rule()
    def resume(self) -> None:
        for each in queues.pauses(self.database):
            assert queues.resume(self.database, each.queue, job=each.job_name, key=each.key)

    @precondition(lambda self: self.leader)
    @rule(point=st.sampled_from(FailurePoint))
    def kill_the_leader_at(self, point: FailurePoint) -> None:
        """In its next step, if it comes by that point; the next leader is another one in any case."""

        def die(failpoint: FailurePoint) -> None:
            if failpoint is point:
                raise Killed

        assert self.leader is not None
        enqueuer, redelivery = self.leader
        with hooked(die), suppress(Killed):
            self.tick()
            enqueuer.drain()
            redelivery.run_once()
            ReturnedJobs(enqueuer.connection).run_once()
        enqueuer.connection.close()
        with suppress(psycopg.OperationalError):
            self.leadership.close()
        self.leader = None

    @precondition(lambda self: not self.leader)
    @rule()
    def lead(self) -> None:
        # A session that is gone keeps its lock for a moment.
        wait_until(lambda: not self.query(LEADERS))
        self.leadership = ExitStack()
        enqueuer = self.leadership.enter_context(
            new_enqueuer(self.database_url, self.redis_url, batch_size=3)
        )
        redelivery = Redelivery(enqueuer, lost_after_seconds=0)
        redelivery.recover()
        self.leader = enqueuer, redelivery

    @rule()
    def redis_forgets_everything(self) -> None:
        self.client.flushall()

    @rule(queue=st.sampled_from(QUEUES))
    def kill_a_worker_that_has_popped(self, queue: str) -> None:
        self.client.lpop(f"rq:queue:{queue}")

    @rule(queue=st.sampled_from(QUEUES), worker=st.sampled_from(WORKERS))
    def claim(self, queue: str, worker: str) -> None:
        rq_id: Any = self.client.lpop(f"rq:queue:{queue}")
        if rq_id is not None:
            _, job_id, delivery = rq_id.decode().split("-")
            self.claim_job(int(job_id), worker, int(delivery))

    def claim_job(self, job_id: int, worker: str, delivery: int) -> None:
        assert job_id in self.committed
        before = self.query("SELECT delivery, next_run_at FROM inflight_jobs WHERE id = %s", job_id)
        claim = claims.claim(self.database, job_id, worker=worker, limits={}, delivery=delivery)
        if claim is not None:
            assert before == [(delivery, None)]
            assert claim.fencing_token > self.tokens.get(job_id, 0)
            self.tokens[job_id] = claim.fencing_token
            self.claims.append(claim)

    def a_claim(self, which: int) -> Claim:
        """One of those that are held; if none is, all that it takes to have one is done first."""
        if not self.claims:
            if self.leader is None:
                self.lead()
            self.resume()
            self.set_rules("a", 0)
            self.stage_in_a_new_transaction("a", 0, late=False, max_attempts=0)
            self.end_a_transaction(-1, commit=True)
            for _ in range(1000):
                self.drain()
                self.claim("a", WORKERS[0])
                if self.claims:
                    break
        return self.claims[which % len(self.claims)]

    @rule(which=st.integers(0, 9))
    def pause_past_the_lease(self, which: int) -> None:
        claim = self.a_claim(which)
        self.query(
            f"{OVERDUE} WHERE id = %s AND fencing_token = %s AND lease_expires_at IS NOT NULL",
            claim.id,
            claim.fencing_token,
        )

    @rule(which=st.integers(0, 9), worker=st.sampled_from(WORKERS), how=st.sampled_from([*ENDS, "go on"]))
    def take_over(self, which: int, worker: str, how: str) -> None:
        """A whole lease race, which would seldom come about step by step."""
        claim = self.a_claim(which)
        self.pause_past_the_lease(which)
        if self.leader is not None:
            self.redeliver()
        current = deliveries(self.database, [claim.id])[claim.id]
        self.claim_job(claim.id, worker, current)
        if how != "go on":
            self.end(claim, how)

    @rule(which=st.integers(0, 9))
    def beat(self, which: int) -> None:
        claim = self.a_claim(which)
        # A claim whose lease is over is called back if a pause applies to its job.
        waits = self.query("SELECT FROM inflight_jobs WHERE id = %s AND next_run_at IS NOT NULL", claim.id)
        current = self.is_current(claim) and not waits
        assert set(leases.extend_many(self.database, [claim])) == ({claim.id} if current else set())

    @rule(which=st.integers(0, 9), how=st.sampled_from(ENDS))
    def end_an_attempt(self, which: int, how: str) -> None:
        self.end(self.a_claim(which), how)

    def end(self, claim: Claim, how: str) -> None:
        self.claims.remove(claim)
        current = self.is_current(claim)
        given = (self.database, claim)
        if how == "finish":
            assert self.finished_with_its_effect(claim) == current
            # The same question once more, as after an answer that was lost.
            assert finishes.finish(*given) == current
        elif how == "fail":
            assert outcomes.retry_later(*given, 0, ERROR) == current
        elif how == "defer":
            assert outcomes.defer(*given, 0) == current
        elif how == "slow down":
            assert outcomes.slow_down(*given, 60) == current
            self.pauses_are_followed = False
        elif how == "be interrupted":
            assert (outcomes.interrupt(*given, 0, ERROR) is not None) == current
        elif how == "give up":
            assert outcomes.bury_claimed(*given, reason="failed", explanation="no") == current

    def is_current(self, claim: Claim) -> bool:
        rows = self.query(
            "SELECT FROM inflight_jobs WHERE id = %s AND fencing_token = %s",
            claim.id,
            claim.fencing_token,
        )
        return bool(rows)

    def finished_with_its_effect(self, claim: Claim) -> bool:
        """What `drain.workers.transaction()` does: the effect and the finish are one commit."""
        with self.database.transaction() as transaction:
            self.database.execute("INSERT INTO effects VALUES (%s)", (claim.id,))
            finished = finishes.finish(self.database, claim)
            if not finished:
                raise psycopg.Rollback(transaction)
        return finished

    @invariant()
    def each_committed_job_is_in_one_table(self) -> None:
        assert sorted(id_ for (id_,) in self.query(EVERYWHERE)) == sorted(self.committed)

    @invariant()
    def no_job_begins_beyond_a_limit(self) -> None:
        """More than the limit may run only if they ran before: the limit was lowered."""
        running: Counter[tuple[str, str | None]] = Counter()
        for queue, key, count in self.query(RUNNING):
            running[queue, key] = count
            running[queue, None] += count
        for (queue, key), count in running.items():
            rules = self.rules_of[queue]
            limit = rules.running if key is None else 1 if rules.ordered else rules.running_per_key
            assert not limit or key == "" or count <= max(limit, self.running[queue, key]), (queue, key)
        self.running = running

    @invariant()
    def nothing_that_is_paused_is_delivered_once_the_leader_has_looked(self) -> None:
        if self.pauses_are_followed:
            assert not self.query(STARTS_IN_A_PAUSE)

    @invariant()
    def of_each_unique_key_one_job_waits_for_its_first_attempt(self) -> None:
        condition = "claimed_at IS NULL"
        assert not self.query(NOT_UNIQUE.format(condition=condition))

    def hold_invariants(self) -> None:
        self.each_committed_job_is_in_one_table()
        self.no_job_begins_beyond_a_limit()
        self.nothing_that_is_paused_is_delivered_once_the_leader_has_looked()
        self.of_each_unique_key_one_job_waits_for_its_first_attempt()

    def teardown(self) -> None:
        try:
            self.work_to_the_end()
            self.check()
        finally:
            self.leadership.close()
            self.database.close()
            self.client.close()
            for connection, _ in self.open:
                connection.close()

    def work_to_the_end(self) -> None:
        for connection, ids in self.open:
            connection.commit()
            self.committed.update(ids)
        if self.leader is None:
            self.lead()
        assert self.leader is not None
        enqueuer, _ = self.leader
        self.resume()
        for number in range(20):
            if number == 2:
                # One at a time would take long, and the dead hold keys for ever.
                for queue in QUEUES:
                    self.set_rules(queue, 0)
            self.query(OVERDUE)
            self.time_passes()
            self.tick()
            enqueuer.drain()
            self.redeliver()
            self.settle_jobs_that_wait_again()
            self.hold_invariants()
            self.redeliver()
            for queue in QUEUES:
                rq_ids: Any = self.client.lpop(f"rq:queue:{queue}", 1000)
                for rq_id in rq_ids or []:
                    self.work(int(rq_id.decode().split("-")[1]))
            if not self.query("SELECT FROM staged_jobs UNION ALL SELECT FROM inflight_jobs"):
                return
        raise AssertionError("jobs are left over that nobody delivers")

    def work(self, job_id: int) -> None:
        claim = claims.claim(self.database, job_id, worker="the last", limits={})
        if claim is None:
            return
        if claim.max_attempts and claim.attempts > claim.max_attempts:
            given = (self.database, claim)
            assert outcomes.bury_claimed(*given, reason="lease", explanation="no")
        else:
            assert self.finished_with_its_effect(claim)

    def check(self) -> None:
        rows = self.query("SELECT id, superseded_by FROM finished_jobs")
        finished = [id_ for id_, _ in rows]
        ran = [id_ for id_, stands in rows if stands is None]
        dead = [id_ for (id_,) in self.query("SELECT id FROM dead_jobs")]
        effects = [id_ for (id_,) in self.query("SELECT id FROM effects")]
        assert sorted(finished + dead) == sorted(self.committed)
        assert sorted(effects) == sorted(ran)
        assert self.committed.issuperset(stands for _, stands in rows if stands is not None)
        buried = self.query("SELECT id FROM dead_jobs WHERE reason = 'cancelled'")
        assert {id_ for (id_,) in buried} == self.cancelled
        ticked = self.query("SELECT tag FROM finished_jobs UNION ALL SELECT tag FROM dead_jobs")
        assert sorted(tag for (tag,) in ticked if tag) == sorted(f"cron:{name}" for name in self.schedules)
        with closing(Producer(self.redis_url, NAMESPACE)) as redis:
            report = audit(self.database, redis, patience_seconds=0)
        assert report.ok, report
        self.checked.append(self.committed)


@contextmanager
def hooked(hook: Callable[[FailurePoint], None]) -> Iterator[None]:
    failpoints.set_hook(hook)
    try:
        yield
    finally:
        failpoints.set_hook(None)


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
def test_each_committed_job_finishes_once_under_any_order_of_events(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, names in PAUSES_OF_THE_LEADER.items():
        for name in names:
            monkeypatch.setattr(module, name, 0)
    query(database_url, "CREATE TABLE effects (id bigint)")
    checked: list[set[int]] = []
    machine: Any = partial(AnyOrder, database_url, redis_url, checked)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or 20,
            derandomize=not EXAMPLES,
            database=None,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    # What each run has committed is compared at its end; runs without a job would compare nothing.
    assert len(checked) >= (EXAMPLES or 20)
    assert any(checked)
