"""`drain events` tells each event of each job once, in order, also of what commits late or is over in an instant."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from drain import cancel, stage, workers
from drain.__main__ import main
from drain.contrib.events import change_feed, follower as following
from drain.contrib.events.follower import Follower
from drain.contrib.events.life import Event
from drain.database import postgres
from drain.embedded import Services
from drain.tables import claims, dead, finishes, outcomes, staged
from drain.tables.claims import Claim
from drain.tables.dead import Selection
from tests import jobs_in_batches as jobs
from tests.helpers import (
    deliveries,
    drain_command,
    end,
    environment,
    query,
    redeliver,
    stage_jobs,
    wait_until,
)
from tests.hostility import Place
from tests.inprocess_worker import Workshop
from tests.worker_processes import Yard


class Telling:
    """A follower, and what a leader and a worker do to jobs."""

    def __init__(self, database_url: str) -> None:
        self.url = database_url
        self.connection = postgres.connect(database_url, "drain events")
        self.follower = Follower()
        self.events: list[Event] = []
        self._delivery = 0
        self.follower.look(self.connection)

    def look(self) -> list[str]:
        """What is new, each as the event and the id."""
        new = self.follower.look(self.connection)
        self.events += new
        return [f"{event.event} {event.id}" for event in new]

    def connected(self) -> Any:
        return closing(postgres.connect(self.url, "test"))

    def stage(self, count: int = 1, **options: Any) -> list[int]:
        return stage_jobs(self.url, count, **options)

    def move(self, ids: list[int]) -> None:
        with self.connected() as connection:
            staged.move(connection, ids, self._delivery)
        self._delivery += len(ids)

    def claim(self, job_id: int, worker: str = "w") -> Claim:
        with self.connected() as connection:
            claim = claims.claim(connection, job_id, worker=worker, limits={})
        assert claim is not None
        return claim

    def finish(self, claim: Claim) -> None:
        with self.connected() as connection:
            assert finishes.finish(connection, claim)

    def fail(self, claim: Claim) -> None:
        error = {"type": "shop.Broken", "message": "no\x1b[2J paper\nline 2", "traceback": "x"}
        with self.connected() as connection:
            assert outcomes.retry_later(connection, claim, 3600, error)

    def redeliver(self, job_id: int) -> None:
        with self.connected() as connection:
            redeliver(connection, job_id)


@pytest.fixture
def telling(database_url: str) -> Iterator[Telling]:
    made = Telling(database_url)
    yield made
    made.connection.close()


def test_each_step_is_reported_once_by_the_next_look(telling: Telling) -> None:
    assert telling.look() == []
    (job_id,) = telling.stage(queue="mail")
    assert telling.look() == [f"staged {job_id}"]
    telling.move([job_id])
    assert telling.look() == [f"moved {job_id}"]
    claim = telling.claim(job_id)
    assert telling.look() == [f"claimed {job_id}"]
    telling.fail(claim)
    assert telling.look() == [f"failed {job_id}"]
    failed = telling.events[-1]
    assert (failed.attempt, failed.error, failed.until is not None) == (1, "Broken: no\x1b[2J paper", True)
    telling.redeliver(job_id)
    assert telling.look() == [f"delivered_again {job_id}"]
    claim = telling.claim(job_id, "other")
    assert telling.look() == [f"claimed {job_id}"]
    assert (telling.events[-1].attempt, telling.events[-1].worker) == (2, "other")
    telling.finish(claim)
    assert telling.look() == [f"finished {job_id}"]
    assert telling.look() == telling.look() == []
    assert {event.queue for event in telling.events} == {"mail"}


def test_a_whole_history_within_one_look_is_reported_in_order(telling: Telling) -> None:
    (job_id,) = telling.stage()
    telling.move([job_id])
    telling.fail(telling.claim(job_id))
    telling.redeliver(job_id)
    telling.finish(telling.claim(job_id))
    assert telling.look() == [
        f"{event} {job_id}" for event in ("staged", "moved", "failed", "claimed", "finished")
    ]
    assert [event.attempt for event in telling.events] == [None, None, 1, 2, 2]
    assert telling.look() == []


def test_a_transaction_that_commits_late_is_not_missed(telling: Telling) -> None:
    with psycopg.connect(telling.url) as slow:
        late = stage(slow, "m.late")
        (early,) = telling.stage()
        assert telling.look() == [f"staged {early}"]
        # Many looks, and ids far above it.
        more = telling.stage(50)
        for _ in range(5):
            telling.look()
        telling.move([early, *more])
        telling.look()
    assert telling.look() == [f"staged {late}"]
    telling.move([late])
    assert telling.look() == [f"moved {late}"]


def test_a_transaction_that_had_begun_before_the_first_look_is_not_missed(database_url: str) -> None:
    with psycopg.connect(database_url) as slow:
        late = stage(slow, "m.late")
        stage_jobs(database_url, 3)
        telling = Telling(database_url)
        assert telling.look() == []
    assert telling.look() == [f"staged {late}"]
    telling.connection.close()


def test_a_finish_that_commits_late_is_reported_then_without_delaying_others(telling: Telling) -> None:
    ids = telling.stage(2)
    telling.move(ids)
    slow_id, quick_id = ids
    slow, quick = map(telling.claim, ids)
    telling.look()
    with psycopg.connect(telling.url) as connection:
        assert finishes.finish_once(connection, slow)
        telling.finish(quick)
        assert telling.look() == [f"finished {quick_id}"]
        assert telling.look() == []
    assert telling.look() == [f"finished {slow_id}"]
    assert telling.look() == []


def test_deaths_of_jobs_never_seen_before_are_reported(telling: Telling) -> None:
    staged_id, claimed_id, expired_id = telling.stage(3)
    telling.move([claimed_id])
    claim = telling.claim(claimed_id)
    with telling.connected() as connection:
        assert outcomes.bury_claimed(connection, claim, reason="failed", explanation="it broke")
        cancel(connection, staged_id)
        staged.bury(connection, [expired_id], "expired", "too late")
    # A dead row keeps neither the time of the move nor that of the claim.
    assert sorted(telling.look()) == sorted(
        [f"staged {each}" for each in (staged_id, claimed_id, expired_id)]
        + [f"dead {claimed_id}", f"cancelled {staged_id}", f"expired {expired_id}"]
    )
    deaths = {event.id: (event.reason, event.error) for event in telling.events if event.reason}
    assert deaths[claimed_id] == ("failed", "it broke")
    assert telling.look() == []
    with telling.connected() as connection:
        dead.revive(connection, Selection(ids=(claimed_id,)))
    telling.move([claimed_id])
    assert telling.look() == [f"moved {claimed_id}"]


def test_deaths_of_claimed_jobs_are_reported_before_the_next_dead_scan(
    telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_DEAD_PAUSE", 1e9)
    ids = telling.stage(2)
    telling.move(ids)
    seen, unseen = ids
    claim = telling.claim(seen)
    telling.look()
    with telling.connected() as connection:
        assert outcomes.bury_claimed(connection, claim, reason="failed", explanation="x")
        cancel(connection, unseen)
    assert telling.look() == [f"dead {seen}"]
    telling.follower._dead_at = 0.0
    assert telling.look() == [f"cancelled {unseen}"]


def test_a_deferred_job_is_reported_with_the_end_of_its_wait(telling: Telling) -> None:
    (job_id,) = telling.stage()
    telling.move([job_id])
    claim = telling.claim(job_id)
    telling.look()
    with telling.connected() as connection:
        assert outcomes.defer(connection, claim, 60.0)
    assert telling.look() == [f"deferred {job_id}"]
    assert telling.events[-1].until is not None
    assert not telling.events[-1].is_exact
    assert telling.look() == []


def test_a_superseded_job_is_reported_as_such(telling: Telling) -> None:
    telling.look()
    query(
        telling.url,
        "INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "moved_at, claimed_at, finished_at, attempts, fencing_token, superseded_by) "
        "VALUES (7, 'm.f', '[]', '{}', 'default', 0, now(), now(), now(), now(), now(), 0, 0, 8)",
    )
    assert telling.look() == ["staged 7", "superseded 7"]
    assert telling.events[-1].superseded_by == 8


def test_more_than_a_page_of_each_kind_is_reported_in_full(
    telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "PAGE", 7)
    monkeypatch.setattr(following, "_MOST_PAGES", 2)
    ids = telling.stage(40)
    told: list[str] = []
    while len(told) < 40:
        new = telling.look()
        assert new
        told += new
    assert told == [f"staged {job_id}" for job_id in ids]
    telling.move(ids)
    moved: list[str] = []
    while new := telling.look():
        moved += new
    assert sorted(moved) == sorted(f"moved {job_id}" for job_id in ids)
    with telling.connected() as connection:
        held = claims.claim_many(connection, deliveries(connection, ids), worker="w", limits={})
        finishes.finish_many(connection, held)
    assert sorted(telling.look()) == sorted(
        f"{event} {job_id}" for job_id in ids for event in ("claimed", "finished")
    )


def test_a_forgotten_job_is_reported_again_rather_than_missed(
    telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_MOST_JOBS", 1)
    ids = telling.stage(3)
    telling.look()
    telling.move(ids)
    assert {f"moved {job_id}" for job_id in ids} <= set(telling.look())


def test_only_the_table_of_dead_jobs_is_read_in_full(telling: Telling) -> None:
    parameters = {
        "above": 1,
        "page": 10,
        "ids": "{1}",
        "queues": [],
        "numbers": [],
        "most": 10,
        "since": "2026-01-01",
        "xid": "1000",
        "xids": ["1000"],
        "id": 0,
    }
    names = "NEW_STAGED STAGED_AMONG INFLIGHT_AMONG DEAD_AMONG NEW_DELIVERIES CLAIMED FAILED FINISHED_BY NEW_FINISHED"
    with change_feed.one_snapshot(telling.connection):
        for name in names.split():
            plan = telling.connection.execute(
                f"EXPLAIN {getattr(change_feed, f'_{name}')}".encode(), parameters
            )
            assert [line for (line,) in plan if "Seq Scan" in line] == [], name


# --- the command


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    return environment(database_url, redis_url)


def told_by(output: str) -> dict[int, list[str]]:
    """Events of each job, by the lines of JSON."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for line in output.splitlines():
        # The last line may be half written.
        with suppress(ValueError):
            event = json.loads(line)
            found[event["id"]].append(event["event"])
    return dict(found)


def test_the_events_of_real_programs_are_reported_in_full(yard: Yard) -> None:
    env = yard.env()
    words = ("events", "--follow", "--json", "--every", "0.1")
    with drain_command(*words, env=env) as command:
        wait_until(
            lambda: query(
                yard.database_url, "SELECT FROM pg_stat_activity WHERE application_name = 'drain events'"
            )
        )
        with drain_command("run", "--metrics-port", "0", env=env), yard.working():
            ids = [*yard.stage(jobs.note, *map(str, range(100))), *yard.stage(jobs.note, "last")]
            (failing,) = yard.stage(jobs.fail, "x")
            yard.wait_for("finished_jobs", ids)
            yard.wait_for("dead_jobs", [failing])
            wait_until(lambda: all("finished" in told_by(command.output).get(each, []) for each in ids))
            wait_until(lambda: "dead" in told_by(command.output).get(failing, []))
        assert end(command, signal.SIGINT) == 0
        told = told_by(command.output)
    assert {tuple(told[job_id]) for job_id in ids} == {("staged", "moved", "claimed", "finished")}
    assert told[failing][0] == "staged"
    assert told[failing][-1] == "dead"


@pytest.mark.usefixtures("processes")
def test_plain_event_lines_are_escaped_and_filtered(telling: Telling, env: dict[str, str]) -> None:
    with drain_command("events", "--follow", "--every", "0.1", "--queue", "mail", env=env) as command:
        wait_until(lambda: telling.stage(queue="mail") and command.output)
        telling.stage(queue="other")
        (job_id,) = telling.stage(queue="mail", job="m.\u202ef")
        telling.move([job_id])
        telling.fail(telling.claim(job_id))
        wait_until(lambda: "failed" in command.output)
        assert end(command, signal.SIGINT) == 0
        lines = [line for line in command.output.splitlines() if f" {job_id} " in line]
        assert "[other]" not in command.output
    assert [line.split()[2] for line in lines] == ["staged", "moved", "claimed", "failed"]
    assert all("m.\\u202ef [mail]" in line for line in lines)
    assert "attempt 1; Broken: no\\x1b[2J paper; waits until" in lines[-1]


def test_events_of_one_job_cover_its_whole_history(telling: Telling, env: dict[str, str]) -> None:
    (job_id,) = telling.stage()
    telling.move([job_id])
    claim = telling.claim(job_id)
    with telling.connected() as connection:
        outcomes.bury_claimed(connection, claim, reason="failed", explanation="it broke")
        dead.revive(connection, Selection(ids=(job_id,)))
    telling.move([job_id])
    telling.finish(telling.claim(job_id))
    result = CliRunner().invoke(main, ["events", "--id", str(job_id), "--json"], env=env)
    assert result.exit_code == 0, result.output
    assert told_by(result.stdout) == {job_id: ["staged", "dead", "moved", "claimed", "finished"]}
    text = CliRunner().invoke(main, ["events", "--id", str(job_id)], env=env).stdout
    assert "dead" in text.splitlines()[1]
    assert "it broke" in text.splitlines()[1]


def test_a_death_comes_behind_its_failures_and_its_history_keeps_the_first_and_last(
    telling: Telling, env: dict[str, str]
) -> None:
    def events() -> list[dict[str, Any]]:
        result = CliRunner().invoke(main, ["events", "--id", str(job_id), "--json"], env=env)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    (job_id,) = telling.stage()
    telling.move([job_id])
    for message in ("first", "second", "third"):
        claim = telling.claim(job_id)
        error = {"type": "shop.Broken", "message": message, "traceback": "x"}
        with telling.connected() as connection:
            if message == "third":
                outcomes.bury_claimed(connection, claim, reason="failed", explanation="it broke", error=error)
                break
            assert outcomes.retry_later(connection, claim, 0, error)
        telling.redeliver(job_id)

        if message == "second":
            now = [(each.get("error"), each.get("attempt")) for each in events() if each["event"] == "failed"]
            assert now == [("Broken: first", 1), ("Broken: second", 2)]

    found = events()
    assert [each["event"] for each in found] == ["staged", *["claimed", "failed"] * 3, "dead"]
    assert [each["at"] for each in found] == sorted(each["at"] for each in found)
    errors = [each["error"] for each in found if "error" in each]
    assert errors == ["Broken: first", "Broken: second", "Broken: third", "it broke"]
    assert [each.get("attempt") for each in found] == [None, 1, 1, 2, 2, 3, 3, 3]
    with telling.connected() as connection:
        dead.revive(connection, Selection(ids=(job_id,)))
    assert [each["event"] for each in events()] == ["staged", "failed", "failed", "dead"]


def test_an_unknown_or_missing_job_id_is_refused(env: dict[str, str]) -> None:
    result = CliRunner().invoke(main, ["events", "--id", "42"], env=env)
    assert result.exit_code == 1
    assert "no job has this id" in result.output
    assert CliRunner().invoke(main, ["events"], env=env).exit_code == 2


@pytest.mark.usefixtures("processes")
def test_an_outage_is_reported_once_and_its_events_are_not_missed(
    servers: Services, database_url: str, env: dict[str, str]
) -> None:
    ((name,),) = query(database_url, "SELECT current_database()")
    other = servers.postgres.url_of("postgres")
    away = f"""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = '{name}' AND application_name = 'drain events'"""
    with (
        closing(postgres.connect(database_url, "test")) as connection,
        drain_command("events", "--follow", "--json", "--every", "0.1", env=env) as command,
    ):
        wait_until(lambda: stage(connection, "m.f") and told_by(command.output))
        query(other, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        query(other, away)
        wait_until(lambda: "trying again" in command.output)
        job_id = stage(connection, "m.f")
        query(other, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        wait_until(lambda: "reachable again" in command.output)
        wait_until(lambda: job_id in told_by(command.output))
        assert command.output.count("trying again") == 1
        assert end(command, signal.SIGINT) == 0


def test_after_a_failover_that_lost_transactions_new_events_are_reported(telling: Telling) -> None:
    follower = telling.follower
    ids = telling.stage(2)
    telling.look()
    assert follower._last is not None
    # Positions in the history that was lost.
    follower._last = follower._last._replace(xmax=follower._last.xmax + 1000)
    follower._top, follower._deliveries = ids[-1] + 100, {"default": 100}
    assert telling.look() == []
    (job_id,) = telling.stage()
    assert telling.look() == [f"staged {job_id}"]
    telling.move([job_id])
    assert telling.look() == [f"moved {job_id}"]


def test_the_inspection_role_has_sufficient_rights(place: Place, redis_url: str) -> None:
    with closing(postgres.connect(place.url_of("inspection"), "drain events")) as connection:
        follower = Follower()
        follower.look(connection)
        ids = stage_jobs(place.url, 2)
        assert [event.id for event in follower.look(connection)] == ids
        with closing(postgres.connect(place.url, "test")) as owner:
            staged.move(owner, ids, 0)
        assert [event.event for event in follower.look(connection)] == ["moved", "moved"]


def test_an_interrupted_attempt_is_reported_as_interrupted(shop: Workshop) -> None:
    def act() -> None:
        raise workers.Defer(60)

    job_id = shop.delivered(act)
    shop.work(job_id)
    query(
        shop.database_url,
        """UPDATE inflight_jobs SET last_error = jsonb_build_object('type', 'drain.workers.errors.WorkerStoppedError',
        'message', 'stopped', 'at', clock_timestamp())""",
    )
    with closing(postgres.connect(shop.database_url, "drain events")) as connection:
        follower = following.JobFollower(job_id)
        told = [event.event for event in follower.look(connection)]
        assert told == ["staged", "moved", "claimed", "interrupted"]
        assert follower.look(connection) == []
