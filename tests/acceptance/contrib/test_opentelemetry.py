"""OpenTelemetry's own SDK sees who staged a job, and each attempt at it."""

import asyncio
import json
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import drain
from drain import hooks, job, stage, stage_many
from drain.contrib.telemetry.opentelemetry import DrainInstrumentor
from tests import jobs_with_spans as jobs
from tests.helpers import PATIENCE_SECONDS, ROOT, query, rq_worker
from tests.inprocess_worker import NAME, Workshop
from tests.worker_processes import Yard

pytestmark = pytest.mark.every_python

EXPORTED = "tests.jobs_with_spans"


class Spans:
    """Spans that have ended, by the real SDK."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("the application")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Spans:
    spans = Spans()
    DrainInstrumentor().instrument(tracer_provider=spans.provider)
    return spans


def ids(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def test_a_job_is_one_trace_from_the_request_to_the_first_attempt(shop: Workshop, spans: Spans) -> None:
    seen: list[tuple[int, int]] = []

    def act() -> None:
        current = trace.get_current_span().get_span_context()
        seen.append((current.trace_id, current.span_id))

    registered = job(name=NAME, queue="mail")(act)
    with spans.tracer.start_as_current_span("request") as request:
        job_id = shop.deliver(registered)
        assert trace.get_current_span() is request
    assert shop.work(job_id) == "finished"

    producer, consumer = spans.only("send mail"), spans.only("process mail")
    assert parent(producer) == ids(spans.only("request"))
    assert parent(consumer) == ids(producer)
    assert consumer.parent is not None
    assert consumer.parent.is_remote
    assert seen == [ids(consumer)]
    assert (producer.kind, consumer.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {
        "messaging.system": "job_drain",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(job_id),
        "job_drain.job.name": NAME,
    }
    assert dict(producer.attributes or {}) == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert dict(consumer.attributes or {}) == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "job_drain.job.attempt": 1,
    }
    assert not consumer.links
    assert consumer.status.status_code is StatusCode.UNSET
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_retry_is_a_trace_of_its_own_with_a_link_to_the_producer(shop: Workshop, spans: Spans) -> None:
    def act() -> None:
        raise ValueError("no luck")

    job_id = shop.deliver(job(name=NAME, max_attempts=2)(act))
    assert [shop.work(job_id), shop.work(job_id)] == ["retrying", "dead"]
    producer = spans.only("send default")
    first, second = spans.named("process default")
    assert parent(first) == ids(producer)
    assert parent(second) is None
    assert second.context.trace_id != producer.context.trace_id
    assert [(link.context.trace_id, link.context.span_id) for link in second.links] == [ids(producer)]
    for span in (first, second):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "ValueError: no luck"
        (event,) = span.events
        assert event.name == "exception"
        assert "in act" in str((event.attributes or {})["exception.stacktrace"])
        assert (span.attributes or {})["error.type"] == "ValueError"
    assert [(span.attributes or {})["job_drain.job.attempt"] for span in (first, second)] == [1, 2]


def test_a_retry_that_a_job_asks_for_reports_the_error_behind_it(shop: Workshop, spans: Spans) -> None:
    def act() -> None:
        raise drain.Retry(0) from ValueError("no luck")

    assert shop.work(shop.deliver(job(name=NAME)(act))) == "retrying"
    span = spans.only("process default")
    assert span.status.description == "ValueError: no luck"
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert (span.attributes or {})["job_drain.job.outcome"] == "failed"


@pytest.mark.parametrize("error", [drain.Defer(0), drain.RateLimited(0.001)])
def test_a_deferred_job_is_not_reported_as_failed(shop: Workshop, spans: Spans, error: Exception) -> None:
    def act() -> None:
        raise error

    assert shop.work(shop.deliver(job(name=NAME)(act))) == "deferred"
    span = spans.only("process default")
    assert (span.status.status_code, len(span.events)) == (StatusCode.UNSET, 0)
    assert (span.attributes or {})["job_drain.job.outcome"] == "deferred"


def test_an_unprintable_error_does_not_break_the_worker(shop: Workshop, spans: Spans) -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def act() -> None:
        raise UnprintableError

    assert shop.work(shop.deliver(job(name=NAME)(act))) == "retrying"
    assert spans.only("process default").status.status_code is StatusCode.ERROR


def test_stage_many_is_one_span_for_all_its_jobs(shop: Workshop, spans: Spans) -> None:
    registered = job(name=NAME)(lambda _: None)
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        assert len(stage_many(connection, registered, [(n,) for n in range(3)])) == 3
    producer = spans.only("send default")
    assert (producer.attributes or {})["messaging.batch.message_count"] == 3
    found = query(shop.database_url, "SELECT DISTINCT context ->> 'traceparent' FROM staged_jobs")
    trace_id, span_id = ids(producer)
    assert found == [(f"00-{trace_id:032x}-{span_id:016x}-{producer.context.trace_flags:02x}",)]


def test_a_refused_insert_is_an_error_of_the_producer(shop: Workshop, spans: Spans) -> None:
    with (
        psycopg.connect(shop.database_url) as connection,
        pytest.raises(psycopg.errors.CheckViolation),
    ):
        stage(connection, "m.f", tag="x" * 256)
    span = spans.only("send default")
    assert span.status.status_code is StatusCode.ERROR
    assert "messaging.message.id" not in (span.attributes or {})


def test_staging_from_an_event_loop_is_traced_for_each_task(shop: Workshop, spans: Spans) -> None:
    async def request(name: str) -> int:
        connection = await psycopg.AsyncConnection.connect(shop.database_url, autocommit=True)
        async with connection:
            with spans.tracer.start_as_current_span(name):
                return await drain.astage(connection, "m.f", [name])

    async def both() -> None:
        await asyncio.gather(request("one"), request("other"))

    asyncio.run(both())
    requests = {span.context.trace_id: span for name in ("one", "other") for span in spans.named(name)}
    producers = spans.named("send default")
    assert len(requests) == len(producers) == 2
    for producer in producers:
        assert parent(producer) == ids(requests[producer.context.trace_id])


def test_an_async_job_has_the_span_of_its_own_task(shop: Workshop, spans: Spans) -> None:
    async def act() -> None:
        await asyncio.sleep(0)
        with spans.tracer.start_as_current_span("inner"):
            await asyncio.sleep(0)

    assert shop.work(shop.deliver(job(name=NAME)(act))) == "finished"
    assert parent(spans.only("inner")) == ids(spans.only("process default"))


def test_baggage_and_state_are_propagated_and_an_explicit_context_is_kept(
    shop: Workshop, spans: Spans
) -> None:
    seen: list[object] = []
    registered = job(name=NAME)(lambda: seen.append(baggage.get_baggage("tenant")))
    token = attach(baggage.set_baggage("tenant", "seven"))
    job_id = shop.deliver(registered)
    detach(token)
    assert shop.work(job_id) == "finished"
    assert seen == ["seven"]

    mine = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        other = stage(connection, registered, context=mine)
    assert query(shop.database_url, "SELECT context FROM staged_jobs WHERE id = %s", other) == [(mine,)]


@pytest.mark.parametrize(
    "context", [None, {"traceparent": 7}, {"traceparent": "nonsense"}, {"other": "traceparent"}]
)
def test_a_job_without_a_trace_begins_one(
    shop: Workshop, spans: Spans, context: dict[str, Any] | None
) -> None:
    job_id = shop.deliver(job(name=NAME)(lambda: None))
    text = None if context is None else json.dumps(context)
    query(shop.database_url, "UPDATE inflight_jobs SET context = %s WHERE id = %s", text, job_id)
    assert shop.work(job_id) == "finished"
    assert parent(spans.only("process default")) is None


def test_a_thread_does_not_inherit_the_span_of_the_job(shop: Workshop, spans: Spans) -> None:
    seen: list[bool] = []
    thread = threading.Thread(
        target=lambda: seen.append(trace.get_current_span().get_span_context().is_valid)
    )

    def act() -> None:
        thread.start()
        thread.join()

    assert shop.work(shop.deliver(job(name=NAME)(act))) == "finished"
    assert seen == [False]


def test_uninstrument_removes_every_hook(shop: Workshop, spans: Spans) -> None:
    DrainInstrumentor().uninstrument()
    assert (hooks.around_hooks, hooks.stage_hooks, hooks.producers) == ((), (), ())
    assert shop.work(shop.deliver(job(name=NAME)(lambda: None))) == "finished"
    assert spans.named("send default") == spans.named("process default") == []
    DrainInstrumentor().instrument(tracer_provider=spans.provider)
    assert shop.work(shop.deliver(job(name=NAME)(lambda: None))) == "finished"
    assert len(spans.named("process default")) == 1


def in_a_burst_of_drain_work(yard: Yard, env: dict[str, str]) -> None:
    with yard.working("--burst", **env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0


def in_threads_of_drain_work(yard: Yard, env: dict[str, str]) -> None:
    with yard.working("--burst", "--threads", "3", **env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0


def in_rqs_worker(yard: Yard, env: dict[str, str]) -> None:
    rq_worker(yard.redis_url, "default", env=yard.env(**env))


@pytest.mark.parametrize(
    "work",
    [in_a_burst_of_drain_work, in_threads_of_drain_work, in_rqs_worker],
    ids=lambda each: each.__name__,
)
def test_the_spans_of_every_kind_of_worker_are_sent(
    yard: Yard, spans: Spans, tmp_path: Path, work: Callable[[Yard, dict[str, str]], None]
) -> None:
    """By the SDK's batches, which a forked process has to send before it ends."""

    ids_of_jobs: dict[str, int] = {}
    for each in (jobs.plain, jobs.in_loop, jobs.isolated):
        (ids_of_jobs[each.job_name],) = yard.pushed(each, "label")
    sent = tmp_path / "spans"
    work(yard, {"DRAIN_JOBS": EXPORTED, "SPANS": str(sent)})
    found = [json.loads(line) for line in sent.read_text().splitlines()]
    traces = {f"0x{span.context.trace_id:032x}" for span in spans.named("send default")}
    assert {span["attributes"]["job_drain.job.name"] for span in found} == set(ids_of_jobs)
    assert len(found) == 3
    assert {span["context"]["trace_id"] for span in found} == traces


def test_opentelemetry_instrument_finds_the_instrumentor(tmp_path: Path) -> None:
    """By the entry point of an installed package."""

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["opentelemetry_instrumentor"]
    about = tmp_path / "job_drain-0.2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: job-drain\nVersion: 0.2.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (about / "entry_points.txt").write_text(f"[opentelemetry_instrumentor]\n{lines}")
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from opentelemetry.instrumentation.auto_instrumentation import initialize; initialize()\n"
        "from drain import hooks; print(len(hooks.producers), len(hooks.around_hooks))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert answer.stdout.split() == ["1", "1"], answer.stderr
