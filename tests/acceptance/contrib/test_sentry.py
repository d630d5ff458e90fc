"""Sentry's own SDK sends each exception once, with its trace, from every kind of worker."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sentry_sdk
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration

import drain
from drain import job, stage_many
from drain.contrib.telemetry import sentry
from drain.contrib.telemetry.sentry import DrainIntegration
from drain.workers.errors import WorkerStoppedError
from tests import jobs_with_sentry as jobs
from tests.envelopes import Kept, keeping
from tests.helpers import PATIENCE_SECONDS, query
from tests.inprocess_worker import NAME, Workshop
from tests.worker_processes import Yard

pytestmark = pytest.mark.every_python


@pytest.fixture(autouse=True)
def no_client_is_left() -> Iterator[None]:
    yield
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)
    sentry._sent.clear()


def kept(**options: Any) -> Kept:
    integrations = [DrainIntegration(**options), LoggingIntegration(), DedupeIntegration()]
    return keeping(default_integrations=False, integrations=integrations)


def exception(event: dict[str, Any]) -> tuple[str, str, str]:
    """Type and text of the exception, and the function that raised it."""
    (value,) = event["exception"]["values"]
    return value["type"], value["value"], value["stacktrace"]["frames"][-1]["function"]


def told(event: dict[str, Any]) -> tuple[str, str, str]:
    """Level of an event, and type and text of its exception; of a line of the log its text alone."""
    if "exception" in event:
        return (str(event["level"]), *exception(event)[:2])
    return str(event["level"]), "", str(event["logentry"])


def test_an_exception_is_sent_once_per_attempt_with_its_stack(shop: Workshop) -> None:
    sent = kept()

    def act(_number: int) -> None:
        raise ValueError("no luck")

    job_id = shop.deliver(job(name=NAME, queue="mail", max_attempts=2)(act), 42)
    assert [shop.work(job_id), shop.work(job_id)] == ["retrying", "dead"]
    first, last = sent.events
    for event in sent.events:
        assert exception(event) == ("ValueError", "no luck", "act")
        assert event["transaction"] == NAME
        assert event["tags"] == {"job": NAME, "queue": "mail"}
        assert (event["extra"]["job"]["id"], event["extra"]["job"]["args"]) == (job_id, "[Filtered]")
    assert [first["level"], last["level"]] == ["warning", "error"]
    assert [event["extra"]["job"]["attempt"] for event in sent.events] == [1, 2]


def test_only_the_last_exception_is_sent_when_retries_are_off(shop: Workshop) -> None:
    sent = kept(retries=False)

    def act() -> None:
        raise ValueError("no luck")

    job_id = shop.deliver(job(name=NAME, max_attempts=2)(act))
    assert shop.work(job_id) == "retrying"
    assert sent.events == []
    assert shop.work(job_id) == "dead"
    assert [event["level"] for event in sent.events] == ["error"]


def test_one_trace_leads_from_the_request_to_the_attempt(shop: Workshop) -> None:
    sent = kept()
    registered = job(name=NAME, queue="mail")(lambda: None)
    with sentry_sdk.start_transaction(name="request", op="http.server") as request:
        job_id = shop.deliver(registered)
    assert shop.work(job_id) == "finished"
    asked, ran = sent.transactions
    (publish,) = asked["spans"]
    assert (publish["op"], publish["description"]) == ("queue.publish", NAME)
    assert publish["data"]["messaging.destination.name"] == "mail"
    assert publish["data"]["messaging.message.id"] == str(job_id)

    trace = ran["contexts"]["trace"]
    assert trace["trace_id"] == request.trace_id
    assert trace["parent_span_id"] == publish["span_id"]
    assert (ran["transaction"], trace["op"], trace["status"]) == (NAME, "queue.process", "ok")
    data = trace["data"]
    assert data["messaging.message.id"] == str(job_id)
    assert data["messaging.message.retry.count"] == 0
    assert 0 <= data["messaging.message.receive.latency"] < PATIENCE_SECONDS * 1000


def test_all_jobs_of_stage_many_are_one_span_and_one_trace(shop: Workshop) -> None:
    sent = kept()
    with (
        psycopg.connect(shop.database_url) as connection,
        sentry_sdk.start_transaction(name="request") as request,
    ):
        stage_many(connection, "m.f", [(1,), (2,)])
    (publish,) = sent.transactions[0]["spans"]
    assert publish["data"]["messaging.batch.message_count"] == 2
    found = query(shop.database_url, "SELECT DISTINCT context ->> 'sentry-trace' FROM staged_jobs")
    assert found == [(f"{request.trace_id}-{publish['span_id']}-1",)]


@pytest.mark.parametrize(
    "error",
    [drain.Defer(0), drain.RateLimited(0.001), WorkerStoppedError(), drain.JobCancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_deferrals_and_cancellations_are_not_sent(shop: Workshop, error: Exception) -> None:
    sent = kept()

    def act() -> None:
        raise error

    shop.work(shop.deliver(job(name=NAME)(act)))
    assert sent.events == []
    assert [each["contexts"]["trace"]["status"] for each in sent.transactions] == ["aborted"]


def test_a_retry_is_sent_as_the_error_behind_it(shop: Workshop) -> None:
    sent = kept()

    def act() -> None:
        raise drain.Retry(0) from ValueError("no luck")

    job_id = shop.deliver(job(name=NAME, max_attempts=2)(act))
    assert [shop.work(job_id), shop.work(job_id)] == ["retrying", "dead"]
    assert [each["level"] for each in sent.events] == ["warning", "error"]
    assert {each["exception"]["values"][-1]["type"] for each in sent.events} == {"ValueError"}


def test_an_error_that_is_not_retried_is_sent_at_level_error(shop: Workshop) -> None:
    sent = kept()

    def act() -> None:
        raise ValueError("no luck")

    job_id = shop.deliver(job(name=NAME, give_up_on=(ValueError,))(act))
    assert shop.work(job_id) == "dead"
    assert [event["level"] for event in sent.events] == ["error"]


def test_an_exception_after_the_finish_is_sent_once(shop: Workshop) -> None:
    sent = kept()

    def act() -> None:
        with drain.psycopg_transaction():
            pass
        raise ValueError("afterwards")

    assert shop.work(shop.deliver(job(name=NAME)(act))) == "finished"
    assert [(event["level"], exception(event)[0]) for event in sent.events] == [("error", "ValueError")]


def test_a_death_without_an_exception_is_sent_as_a_log_message(shop: Workshop) -> None:
    sent = kept()
    job_id = shop.deliver(job(name=NAME)(lambda: None))
    shop.set(job_id, "expires_at = now() - interval '1 s' WHERE")
    assert shop.work(job_id) == "dead"
    (event,) = sent.events
    assert event["logentry"]["message"] == "job %d (%s) is dead: %s"


def test_each_attempt_has_a_scope_of_its_own(shop: Workshop) -> None:
    sent = kept()

    def act(label: str) -> None:
        sentry_sdk.set_tag("label", label)
        if label == "second":
            sentry_sdk.get_isolation_scope().remove_tag("label")
        raise ValueError(label)

    registered = job(name=NAME)(act)
    for label in ("first", "second"):
        shop.work(shop.deliver(registered, label))
    assert [event["tags"].get("label") for event in sent.events] == ["first", None]
    assert sentry_sdk.get_isolation_scope()._tags == {}


def test_nothing_is_done_without_the_integration(shop: Workshop) -> None:
    kept()
    sent = keeping(default_integrations=False, auto_enabling_integrations=False, integrations=[])

    def act() -> None:
        raise ValueError

    job_id = shop.deliver(job(name=NAME)(act))
    assert shop.work(job_id) == "retrying"
    assert sent.items == []
    assert query(shop.database_url, "SELECT context FROM inflight_jobs") == [(None,)]


def in_drain_work(yard: Yard, env: dict[str, str]) -> None:
    with yard.working("--burst", **env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0


def in_rqs_worker(yard: Yard, env: dict[str, str]) -> None:
    # As Sentry's documentation says for its integration of RQ: initialized before the worker forks.
    program = "import sys; from rq.cli import main; import tests.jobs_with_sentry; sys.argv[0] = 'rq'; sys.exit(main())"
    subprocess.run(
        [sys.executable, "-c", program, "worker", "--burst", "--url", yard.redis_url, "default"],
        env=yard.env(**env),
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )


WORKERS = pytest.mark.parametrize(
    "work", [in_drain_work, in_rqs_worker], ids=lambda function: function.__name__
)


@WORKERS
def test_exceptions_are_sent_once_alongside_sentrys_own_integrations(
    yard: Yard, tmp_path: Path, work: Callable[[Yard, dict[str, str]], None]
) -> None:
    yard.pushed(jobs.fine, "fine")
    dead = [
        yard.pushed(each, each.job_name)[0] for each in (jobs.fail, jobs.fail_in_loop, jobs.fail_isolated)
    ]
    yard.pushed(jobs.fail_once_more, jobs.fail_once_more.job_name)
    path = tmp_path / "envelopes"
    work(yard, {"DRAIN_JOBS": jobs.__name__, "ENVELOPES": str(path), "OURS": "1"})
    assert yard.all_are("dead_jobs", dead)
    sent = [json.loads(line) for line in path.read_text().splitlines()]
    events = [item for item in sent if item.get("type") != "transaction"]
    failing = (jobs.fail, jobs.fail_in_loop, jobs.fail_isolated)
    assert Counter(map(told, events)) == Counter(
        [
            *(("error", "ValueError", f"no {each.job_name}") for each in failing),
            ("warning", "ValueError", f"no {jobs.fail_once_more.job_name}"),
        ]
    )
    names = Counter(item["transaction"] for item in sent if item.get("type") == "transaction")
    assert names == Counter(each.job_name for each in (*failing, jobs.fine, jobs.fail_once_more))


@WORKERS
def test_sentrys_rq_integration_alone_sends_fatal_exceptions(
    yard: Yard, tmp_path: Path, work: Callable[[Yard, dict[str, str]], None]
) -> None:
    (fine,), (dead,) = yard.pushed(jobs.fine, "fine"), yard.pushed(jobs.fail, "luck")
    path = tmp_path / "envelopes"
    work(yard, {"DRAIN_JOBS": jobs.__name__, "ENVELOPES": str(path)})
    assert yard.all_are("finished_jobs", [fine])
    assert yard.all_are("dead_jobs", [dead])
    sent = [json.loads(line) for line in path.read_text().splitlines()]
    exceptions = [exception(event)[:2] for event in sent if "exception" in event]
    # The note says that the job is dead.
    assert [(kind, text.partition("\n")[0]) for kind, text in exceptions] == [("ValueError", "no luck")]
