"""All queues at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drain.tables import causes, queries
from drain.web.routing import page
from drain.web.views import View

# Upper bound of the jobs of one queue and cause that are counted.
UP_TO = 10_000


def _show(view: View) -> Mapping[str, Any]:
    with view.snapshot() as connection:
        waiting = causes.count_waiting(connection, UP_TO)
        leader = queries.leader(connection)
    return {"queues": waiting, "leader": leader, "up_to": UP_TO}


ROUTES = [page("/", _show, name="overview", template="overview.html", live="overview_live.html")]
