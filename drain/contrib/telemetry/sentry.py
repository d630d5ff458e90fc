"""Sentry: exceptions and transactions of attempts, and spans of staging calls.

    import sentry_sdk
    from drain.contrib.telemetry.sentry import DrainIntegration

    sentry_sdk.init(dsn=..., integrations=[DrainIntegration()])

An exception is sent once, whichever worker runs the job. The trace travels as `sentry-trace` and `baggage` in the job's
context, with the time of staging.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from time import time
from types import TracebackType
from typing import Any

try:
    import sentry_sdk
except ModuleNotFoundError as missing:
    from drain import extras

    raise ModuleNotFoundError(
        f"drain.contrib.telemetry.sentry needs Sentry's SDK: {extras.install('sentry')}", name=missing.name
    ) from None

from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor, should_send_default_pii
from sentry_sdk.utils import capture_internal_exceptions, event_from_exception

from drain import hooks
from drain.contrib.telemetry import attempts, forks

_ORIGIN = "auto.queue.drain"
_STAGED_AT = "sentry-staged-at"
# Transaction begun by Sentry's own RQ integration.
_RQ_ORIGIN = "auto.queue.rq"
_RECORDER = "drain.workers.execution.recorder"
_FLUSH_SECONDS = 2.0
# The log line of a death would repeat a sent exception.
_MOST_SENT = 1000
_HIDDEN = "[Filtered]"
_sent: OrderedDict[int, None] = OrderedDict()


class DrainIntegration(Integration):
    """Sentry's integration of job-drain.

    Args:
        retries: Send every attempt's exception, as a warning if a retry follows; False sends only the last one's.
    """

    identifier = "drain"
    origin = _ORIGIN

    def __init__(self, *, retries: bool = True) -> None:
        self.retries = retries
        _install_hooks()

    @staticmethod
    def setup_once() -> None:
        """Suppress repeated events of tracked jobs."""
        add_global_event_processor(_without_repetitions)


def _install_hooks() -> None:
    """Register hooks, inert without a client that has the integration."""
    hooks.around(_Attempt)
    hooks.on_stage(_inject)
    if _producer not in hooks.producers:
        hooks.add_producer(_producer)


def _integration() -> Any:
    return sentry_sdk.get_client().get_integration(DrainIntegration)


class _Producer:
    def begin(self, name: str, queue: str, *, many: bool) -> Any:
        del many
        if _integration() is None or sentry_sdk.get_current_span() is None:
            return None
        span = sentry_sdk.start_span(op="queue.publish", name=name, origin=_ORIGIN)
        span.set_data("messaging.system", "job_drain")
        span.set_data("messaging.destination.name", queue)
        return span.__enter__()

    def end(self, begun: Any, ids: Sequence[int], error: BaseException | None) -> None:
        if begun is None:
            return
        if len(ids) == 1:
            begun.set_data("messaging.message.id", str(ids[0]))
        elif error is None:
            begun.set_data("messaging.batch.message_count", len(ids))
        begun.__exit__(None if error is None else type(error), error, None)


_producer = _Producer()


def _inject(name: str, args: object, kwargs: object, context: dict[str, Any]) -> None:
    del name, args, kwargs
    if _integration() is None:
        return
    with capture_internal_exceptions():
        headers = dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())
        if "sentry-trace" in headers:
            context.setdefault("sentry-trace", headers["sentry-trace"])
        # OpenTelemetry uses the same header: keep both.
        members = [context.get("baggage"), headers.get("baggage")]
        if any(members):
            context["baggage"] = ",".join(filter(None, members))
        context[_STAGED_AT] = f"{time():.6f}"


class _Attempt:
    """Scope and transaction of an attempt; sends its exception."""

    __slots__ = ("_integration", "_job", "_span", "_stack")

    def __init__(self, job: Any) -> None:
        self._job = job
        self._span: Any = None
        self._stack = ExitStack()
        self._integration: Any = None

    def __enter__(self) -> None:
        self._integration = _integration()
        if self._integration is None:
            return
        job = self._job
        with capture_internal_exceptions():
            _drop_transaction_of_rq()
            scope = self._stack.enter_context(sentry_sdk.isolation_scope())
            scope.clear_breadcrumbs()
            scope.add_event_processor(self._describe)
            carrier = attempts.carrier(job.context, "sentry-trace", "baggage", _STAGED_AT)
            staged_at = carrier.pop(_STAGED_AT, None)
            transaction = sentry_sdk.continue_trace(
                carrier, op="queue.process", name=job.name, source="task", origin=_ORIGIN
            )
            self._span = span = self._stack.enter_context(
                sentry_sdk.start_transaction(transaction, custom_sampling_context={"job": _about(job)})
            )
            scope.set_transaction_name(job.name, source="task")
            span.set_status("ok")
            span.set_data("messaging.system", "job_drain")
            span.set_data("messaging.destination.name", job.queue)
            span.set_data("messaging.message.id", str(job.id))
            span.set_data("messaging.message.retry.count", job.attempt - 1)
            # At a retry, time since staging is not latency.
            if staged_at is not None and job.attempt == 1:
                span.set_data("messaging.message.receive.latency", (time() - float(staged_at)) * 1000)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        if self._integration is None:
            return
        with capture_internal_exceptions():
            if error is not None:
                self._note(error)
        with capture_internal_exceptions():
            self._stack.close()
        if forks.is_first_job():
            sentry_sdk.get_client().flush(timeout=_FLUSH_SECONDS)

    def _note(self, error: BaseException) -> None:
        job = self._job
        if attempts.meaning(error) != attempts.FAILED:
            self._span.set_status("aborted")
            return
        self._span.set_status("internal_error")
        # After its transaction finished, a job is not retried.
        is_last = attempts.is_last(error) or job.finished
        if not (is_last or self._integration.retries):
            return
        failure = attempts.failure_of(error)
        event, hint = event_from_exception(
            (type(failure), failure, failure.__traceback__),
            client_options=sentry_sdk.get_client().options,
            mechanism={"type": "drain", "handled": not is_last},
        )
        event["level"] = "error" if is_last else "warning"
        sentry_sdk.capture_event(event, hint=hint)
        if is_last:
            _sent[job.id] = None
        while len(_sent) > _MOST_SENT:
            _sent.popitem(last=False)

    def _describe(self, event: Any, hint: Any) -> Any:
        del hint
        with capture_internal_exceptions():
            about = _about(self._job)
            event.setdefault("tags", {}).update(job=about["name"], queue=about["queue"])
            event.setdefault("extra", {})["job"] = about
        return event


def _about(job: Any) -> dict[str, Any]:
    about = {
        name: getattr(job, name) for name in ("id", "name", "queue", "tag", "attempt", "max_attempts", "key")
    }
    with capture_internal_exceptions():
        shown = should_send_default_pii()
        about["args"] = job.args if shown else _HIDDEN
        about["kwargs"] = job.kwargs if shown else _HIDDEN
    return about


def _drop_transaction_of_rq() -> None:
    """Leave the transaction of Sentry's RQ integration unsent; the job has its own."""
    outer = sentry_sdk.get_current_scope().transaction
    if outer is not None and getattr(outer, "origin", None) == _RQ_ORIGIN:
        outer.sampled = False


def _without_repetitions(event: Any, hint: Any) -> Any:
    """Drop an event of a tracked job that was sent already, or follows as a log line."""
    if _integration() is None or not hint:
        return event
    error = (hint.get("exc_info") or (None, None))[1]
    if getattr(error, "drain_job_id", None) is not None and _mechanism(event) == "rq":
        return None
    record = hint.get("log_record")
    if record is not None and record.name == _RECORDER and getattr(record, "job_id", None) in _sent:
        return None
    return event


def _mechanism(event: Any) -> object:
    values = (event.get("exception") or {}).get("values") or [{}]
    return (values[-1].get("mechanism") or {}).get("type")
