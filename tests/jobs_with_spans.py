"""Jobs of worker processes that write their spans to a file, in the batches of the SDK."""

import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from drain.contrib.telemetry.opentelemetry import DrainInstrumentor
from drain.workers import job


class ToFile(SpanExporter):
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            for span in spans:
                file.write(span.to_json(indent=None) + "\n")
        return SpanExportResult.SUCCESS


if "SPANS" in os.environ:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ToFile(os.environ["SPANS"])))
    trace.set_tracer_provider(provider)
    DrainInstrumentor().instrument()


@job
def plain(label: str) -> None:
    pass


@job
async def in_loop(label: str) -> None:
    pass


@job(isolated=True)
def isolated(label: str) -> None:
    pass
