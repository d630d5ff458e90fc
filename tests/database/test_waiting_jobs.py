"""`drain status` and the metrics count waiting jobs by the cause for which they wait, by a few look-ups."""

import json
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from drain import metrics
from drain.__main__ import main
from drain.enqueuer.enqueuer import SESSION
from drain.enqueuer.waiting_jobs import WaitingJobs
from drain.read.causes import read_standings
from drain.read.waiting_by_cause import count_waiting
from drain.tables import pauses, rules as ruled
from drain.tables.pauses import Pauses
from tests.database.test_explain import System
from tests.helpers import new_enqueuer

AN_HOUR = "now() + interval '1 hour'"


@pytest.fixture
def system(database_url: str, redis_url: str) -> System:
    return System(database_url, redis_url)


def waiting(system: System, up_to: int = 1000) -> dict[str, dict[str, int]]:
    """As the leader counts."""
    with psycopg.connect(system.database_url, autocommit=True) as connection:
        connection.execute("; ".join(SESSION).encode())
        return count_waiting(connection, up_to)


def of_mail(system: System) -> dict[str, int]:
    return waiting(system)["mail"]


def test_unheld_jobs_are_due_and_those_of_a_full_list_wait_for_room(system: System) -> None:
    system.stage()
    system.stage(key="acme", priority=5)
    system.stage(queue="letters")
    system.execute(
        f"INSERT INTO staged_jobs (job_name, queue, scheduled_at) VALUES ('m.f', 'mail', {AN_HOUR})"
    )
    assert waiting(system) == {"mail": {"scheduled": 1, "due": 2}, "letters": {"due": 1}}

    system.in_flight()
    system.in_flight(claimed=True)
    system.in_flight(next_run_at="2100-01-01")
    assert of_mail(system) == {"scheduled": 1, "list_full": 2, "queued": 1, "retrying": 1}


def test_paused_jobs_are_counted_separately(system: System) -> None:
    for key in ("acme", "acme", "other"):
        system.stage(key=key)
        system.stage(key=key, job_name="m.g")
    system.pause(queue="mail", key="acme")
    assert of_mail(system) == {"paused": 4, "due": 2}
    system.pause(job_name="m.g")
    assert of_mail(system) == {"paused": 5, "due": 1}
    system.pause(queue="mail", reason="the provider is down", paused_by="ann")
    system.in_flight(next_run_at="2000-01-01")

    assert of_mail(system) == {"paused": 6, "called_back": 1}


def test_jobs_held_by_a_full_limit_count_as_limited(system: System) -> None:
    system.rules(running_per_key=1, running=2)
    for key in ("acme", "acme", "other", None):
        system.stage(key=key)
    system.in_flight(key="acme", claimed=True)
    assert of_mail(system) == {"limited": 2, "due": 2}

    system.in_flight(claimed=True)
    assert of_mail(system) == {"limited": 4}


def test_jobs_of_another_queue_do_not_count_towards_a_limit(system: System) -> None:
    system.rules(running=1)
    system.in_flight(queue="letters", key="acme", claimed=True)
    system.stage(key="acme")
    assert of_mail(system) == {"due": 1}


def test_only_one_job_of_an_ordered_key_may_start_at_a_time(system: System) -> None:
    system.rules(ordered=True)
    for key in ("acme", "acme", "acme", "other"):
        system.stage(key=key)
    assert of_mail(system) == {"limited": 2, "due": 2}


def test_a_retry_holds_only_the_later_jobs_of_its_ordered_key(system: System) -> None:
    system.rules(ordered=True)
    system.stage(key="earlier")
    for key in ("earlier", "acme"):
        system.in_flight(key=key, next_run_at="2100-01-01")
    system.stage(key="acme")
    assert of_mail(system) == {"limited": 1, "due": 1, "retrying": 2}


def test_all_keys_held_by_dead_jobs_are_known_despite_the_bound(system: System) -> None:
    """A bound below their number would call the jobs behind them due, and the leader late."""
    system.rules(ordered=True)
    system.execute(
        "INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, reason, "
        "explanation, key) SELECT 1000 + n, 'm.f', '[]', '{}', 'mail', 0, now(), now(), 'failed', 'test', 'k' || n "
        "FROM generate_series(1, 30) AS numbers (n)"
    )
    for number in range(1, 31):
        system.stage(key=f"k{number}")
    assert waiting(system, up_to=10)["mail"] == {"limited": 10}


def test_reading_a_large_ordered_key_stops_at_the_bound(system: System) -> None:
    system.rules(ordered=True)
    system.pause(job_name="m.g")
    for key in ("a", "b", "c"):
        system.stage(key=key)
        system.stage(key=key, job_name="m.g")
    with psycopg.connect(system.database_url, autocommit=True) as connection:
        rules = ruled.read(connection)["mail"]
        paused = Pauses(pauses.read(connection))
        read_all, read_two = (read_standings(connection, [rules], paused, heads=most) for most in (None, 2))
    assert read_all["mail"].full_keys == set()
    system.execute("UPDATE staged_jobs SET job_name = 'm.g' WHERE key <> 'c'")
    with psycopg.connect(system.database_url, autocommit=True) as connection:
        read_all, read_two = (read_standings(connection, [rules], paused, heads=most) for most in (None, 2))
    assert read_all["mail"].full_keys == {"a", "b"}
    assert read_two["mail"].full_keys == {"a"}


def test_a_paused_job_of_an_ordered_key_holds_those_behind_it(system: System) -> None:
    system.rules(ordered=True)
    system.pause(queue="mail", job_name="m.g")
    for key, job_name in (
        ("acme", "m.g"),
        ("acme", "m.f"),
        ("other", "m.f"),
        ("other", "m.g"),
        ("other", "m.f"),
    ):
        system.stage(key=key, job_name=job_name)
    assert of_mail(system) == {"paused": 2, "limited": 2, "due": 1}


def test_jobs_wait_when_the_rate_is_used_up(system: System) -> None:
    system.rules(rate="6/min")
    system.stage()
    assert of_mail(system) == {"due": 1}

    system.finished(2)
    assert of_mail(system) == {"rate": 1}


def test_a_rate_with_a_burst_is_used_up_while_jobs_begin_as_fast_as_tokens_come_in(system: System) -> None:
    system.rules(rate="6/min", burst=5)
    system.stage()
    system.finished(8, every="10 seconds")
    assert of_mail(system) == {"due": 1}

    system.finished(1, every="85 seconds")
    assert of_mail(system) == {"rate": 1}


def test_a_rate_is_used_up_by_jobs_that_still_run(system: System) -> None:
    system.rules(rate="1/h", burst=2, rate_per_key="1/h")
    system.stage(key="acme")
    system.in_flight(key="other", claimed=True)
    assert of_mail(system) == {"due": 1}
    system.in_flight(key="other", claimed=True)
    assert of_mail(system) == {"rate": 1}


def test_only_a_key_without_tokens_waits_for_the_rate(system: System) -> None:
    system.rules(rate_per_key="1/h", burst=1)
    system.stage(key="acme")
    system.stage(key="other")
    system.in_flight(key="acme", claimed=True)
    assert of_mail(system) == {"rate": 1, "due": 1}


def test_a_rate_is_used_up_by_jobs_that_are_delivered(system: System) -> None:
    system.rules(rate="1/h", burst=1)
    system.stage()
    system.in_flight()
    assert of_mail(system) == {"rate": 1, "queued": 1}


def test_a_count_ends_at_its_bound(system: System) -> None:
    system.execute(
        "INSERT INTO staged_jobs (job_name, queue) SELECT 'm.f', 'mail' FROM generate_series(1, 30)"
    )
    assert waiting(system, 20) == {"mail": {"due": 20}}
    system.pause(queue="mail")
    assert waiting(system, 20) == {"mail": {"paused": 20}}


@pytest.mark.parametrize("rule", ["", "a pause"])
def test_a_million_rows_cost_no_more_than_the_bound(system: System, rule: str) -> None:
    """20,000 rows stand for the million: an index of them is looked at up to the bound."""
    system.execute(
        "INSERT INTO staged_jobs (job_name, queue) SELECT 'm.f', 'mail' FROM generate_series(1, 20000)"
    )
    if rule:
        system.pause(queue="mail", key="acme")
    statements: list[Any] = []
    with psycopg.connect(system.database_url, autocommit=True) as connection:
        connection.execute("; ".join(SESSION).encode())
        execute = connection.execute

        def note(statement: Any, parameters: Any = None, **more: Any) -> Any:
            statements.append((statement, parameters))
            return execute(statement, parameters, **more)

        connection.execute = note  # type: ignore[assignment, method-assign]
        found = count_waiting(connection, 100)
        connection.execute = execute  # type: ignore[method-assign]
        assert found == {"mail": {"due": 100}}
        for statement, parameters in statements:
            text = statement if isinstance(statement, bytes) else str(statement).encode()
            ((plan,),) = execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + text, parameters).fetchall()
            assert most_rows(plan[0]["Plan"]) <= 400, text


def most_rows(plan: dict[str, Any]) -> int:
    own: int = round((plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"])
    return max([own, *(most_rows(child) for child in plan.get("Plans", ()))])


def test_the_metric_covers_each_cause_and_returns_to_zero(system: System) -> None:
    def value(queue: str, cause: str) -> float:
        return float(metrics.WAITING.labels(queue, cause)._value.get())

    measured = WaitingJobs()
    with new_enqueuer(system.database_url, system.redis_url) as enqueuer:
        system.stage()
        measured.run_once(enqueuer.connection, [])
        assert value("mail", "due") == 1
        system.pause(queue="mail")
        measured.run_once(enqueuer.connection, [])
    assert (value("mail", "due"), value("mail", "paused")) == (0, 1)
    metrics.WAITING.clear()


def test_the_status_shows_causes_rules_and_pauses(system: System) -> None:
    system.rules(running=2, rate="100/s", ordered=True)
    system.pause(queue="mail", reason="the provider is down", paused_by="ann")
    system.stage(key="acme")
    system.stage(queue="letters")

    result = CliRunner().invoke(main, ["status", "--json"], env=system.env)

    queues = json.loads(result.stdout)["queues"]
    assert queues["mail"]["waiting"] == {"paused": 1}
    assert queues["mail"]["rules"] == {"running": 2, "rate": "100/s", "ordered": True, "on_dead": "hold"}
    assert (
        queues["mail"]["paused"].items()
        >= {"until": None, "by": "ann", "reason": "the provider is down"}.items()
    )
    assert (queues["letters"]["waiting"], queues["letters"]["paused"]) == ({"due": 1}, None)
    text = CliRunner().invoke(main, ["status"], env=system.env | {"COLUMNS": "80"}).stdout
    assert "mail: 1 paused" in text
