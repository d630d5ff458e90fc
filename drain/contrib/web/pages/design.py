"""Every component with sample values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from drain.contrib.web import charts
from drain.contrib.web.charts import Series
from drain.contrib.web.history import STEP, STEPS
from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.read.queue_overview import Number

_ENDS = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _show(_view: View) -> Mapping[str, Any]:
    completed = [Number(300 + 37 * place % 190) for place in range(STEPS)]
    died = [Number(place % 7) for place in range(STEPS)]
    series = [Series("completed", "completed", completed), Series("failures", "dead", died)]
    return {
        "series": series,
        "chart": charts.stacked(series, _ENDS - STEPS * STEP, _ENDS),
        "spark": charts.spark,
        "meter": charts.meter,
        "estimate": Number(12_345, is_estimate=True),
    }


ROUTES = [page("/design", _show, name="design", template="design.html")]
