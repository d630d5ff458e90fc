"""Bulk runs: those that are under way, those that have staged their jobs, and other bulk work of now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from drain.contrib.web import bulk_runs
from drain.contrib.web.forms import FormError
from drain.contrib.web.paging import ROWS, page_of, place_of
from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.tables import queries

# Upper bound of the runs that are shown as under way.
_FEW = 50


def _show(view: View) -> Mapping[str, Any]:
    after = _after(place_of(view, (str, str)))
    with view.snapshot() as connection:
        now = queries.now(connection)
        under_way = bulk_runs.under_way(connection, _FEW)
        work = bulk_runs.work(connection, _FEW)
        staged = bulk_runs.latest(connection, ROWS + 1, after)
    return {
        "now": now,
        "under_way": under_way,
        "work": work,
        "page": page_of(view, staged, lambda run: (run.committed_at.isoformat(), run.run_id)),
    }


def _after(place: Sequence[Any] | None) -> tuple[datetime, str] | None:
    if place is None:
        return None
    try:
        at = datetime.fromisoformat(place[0])
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise FormError("the address is no page of this list: begin with the first page")
    return at, place[1]


ROUTES = [page("/bulk", _show, name="bulk", template="bulk.html", live="bulk_live.html")]
