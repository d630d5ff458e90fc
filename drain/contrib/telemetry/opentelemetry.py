"""OpenTelemetry: a producer span per staging call, and a consumer span per attempt.

    from drain.contrib.telemetry.opentelemetry import DrainInstrumentor

    DrainInstrumentor().instrument()

`opentelemetry-instrument` finds the instrumentor. Names follow the semantic conventions for messaging. The trace
context travels as `traceparent`, `tracestate` and `baggage` in the job's context.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from types import TracebackType
from typing import Any

try:
    import opentelemetry.instrumentation.instrumentor
    import opentelemetry.trace  # noqa: F401
except ModuleNotFoundError as missing:
    from drain import extras

    raise ModuleNotFoundError(
        f"drain.contrib.telemetry.opentelemetry needs OpenTelemetry: {extras.install('opentelemetry')}",
        name=missing.name,
    ) from None

from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, detach
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from drain import hooks
from drain.contrib.telemetry import attempts, forks

_SCHEMA = "https://opentelemetry.io/schemas/1.30.0"
_FLUSH_MILLISECONDS = 2000

_traces = TraceContextTextMapPropagator()
_baggage = W3CBaggagePropagator()


class DrainInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instrumentor of job-drain: `instrument(tracer_provider=None)` and `uninstrument()`."""

    _telemetry: _Telemetry | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no requirements."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        self._telemetry = telemetry = _Telemetry(kwargs.get("tracer_provider"))
        hooks.around(telemetry.process)
        hooks.on_stage(telemetry.inject)
        hooks.add_producer(telemetry)

    def _uninstrument(self, **kwargs: Any) -> None:
        del kwargs
        telemetry, self._telemetry = self._telemetry, None
        if telemetry is not None:
            hooks.remove(telemetry.process)
            hooks.remove(telemetry.inject)
            hooks.remove_producer(telemetry)


class _Telemetry:
    def __init__(self, provider: trace.TracerProvider | None) -> None:
        self.tracer = trace.get_tracer("drain", _version(), provider, schema_url=_SCHEMA)
        self._provider = provider

    def begin(self, name: str, queue: str, *, many: bool) -> tuple[Span, Any]:
        """Begin the span of a staging call, parent of the driver's."""
        del many
        span_name, attributes = _of_producer(name, queue)
        span = self.tracer.start_span(span_name, kind=SpanKind.PRODUCER, attributes=attributes)
        return span, attach(trace.set_span_in_context(span))

    def end(self, begun: tuple[Span, Any], ids: Sequence[int], error: BaseException | None) -> None:
        span, token = begun
        detach(token)
        if error is not None:
            _fail(span, error)
        elif len(ids) == 1:
            span.set_attribute("messaging.message.id", str(ids[0]))
        else:
            span.set_attribute("messaging.batch.message_count", len(ids))
        span.end()

    def inject(self, name: str, args: object, kwargs: object, context: dict[str, Any]) -> None:
        del name, args, kwargs
        current = trace.get_current_span().get_span_context()
        if current.is_valid and "traceparent" not in context:
            # The propagator's format, five times as fast.
            context["traceparent"] = (
                f"00-{current.trace_id:032x}-{current.span_id:016x}-{current.trace_flags:02x}"
            )
            if current.trace_state:
                context["tracestate"] = current.trace_state.to_header()
        if baggage.get_all():
            added: dict[str, str] = {}
            _baggage.inject(added)
            given = context.get("baggage")
            context["baggage"] = ",".join(filter(None, [given, added.get("baggage")]))

    def process(self, job: Any) -> _Attempt:
        return _Attempt(self, job)

    def flush(self) -> None:
        provider: Any = self._provider or trace.get_tracer_provider()
        if hasattr(provider, "force_flush"):
            provider.force_flush(_FLUSH_MILLISECONDS)


class _Attempt:
    """Span of an attempt: a child of the producer's span, or at a retry a root linked to it."""

    __slots__ = ("_job", "_span", "_telemetry", "_token")

    def __init__(self, telemetry: _Telemetry, job: Any) -> None:
        self._telemetry = telemetry
        self._job = job

    def __enter__(self) -> None:
        job = self._job
        parent, links = _parent_of(job)
        attributes: dict[str, Any] = {
            **_attributes("process", job.name, job.queue),
            "messaging.message.id": str(job.id),
            "job_drain.job.attempt": job.attempt,
        }
        self._span = self._telemetry.tracer.start_span(
            f"process {job.queue}", parent, SpanKind.CONSUMER, attributes, links
        )
        self._token = attach(trace.set_span_in_context(self._span, parent))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        span = self._span
        detach(self._token)
        if error is not None:
            meaning = attempts.meaning(error)
            span.set_attribute("job_drain.job.outcome", meaning)
            if meaning == attempts.FAILED:
                _fail(span, attempts.failure_of(error))
        span.end()
        if forks.is_first_job():
            self._telemetry.flush()


def _parent_of(job: Any) -> tuple[Context, list[Link]]:
    carrier = attempts.carrier(job.context, "traceparent", "tracestate", "baggage")
    if not carrier:
        return Context(), []
    own = _baggage.extract(carrier, Context())
    parent = _traces.extract(carrier, own)
    producer = trace.get_current_span(parent).get_span_context()
    if job.attempt == 1 or not producer.is_valid:
        return parent, []
    return own, [Link(producer)]


# Applications stage the same few jobs.
@lru_cache(maxsize=500)
def _of_producer(name: str, queue: str) -> tuple[str, Mapping[str, str]]:
    return f"send {queue}", _attributes("send", name, queue)


def _attributes(operation: str, name: str, queue: str) -> dict[str, str]:
    return {
        "messaging.system": "job_drain",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "job_drain.job.name": name,
    }


def _fail(span: Span, error: BaseException) -> None:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR))
    # The application's `__str__` may raise.
    with suppress(Exception):
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {error}"))


def _version() -> str:
    try:
        return metadata.version("job-drain")
    except metadata.PackageNotFoundError:
        return ""
