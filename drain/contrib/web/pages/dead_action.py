"""Progress and cancellation of bulk actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drain.contrib.web.bulk_actions import MOST, RUNNING, SLICE, BulkAction
from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.contrib.web.writes import Done, Write, action
from drain.errors import DrainError, UnknownJobError
from drain.formatting import count


def _find(view: View) -> BulkAction:
    found = view.site.bulk_actions.find(str(view.params["action"]))
    if found is None:
        raise UnknownJobError(
            "This drain web process does not know the bulk action: another process runs it, this one has restarted "
            f"(which cancels it), or {MOST} later ones have ended. Failures shows the jobs that are still dead."
        )
    return found


def _show(view: View) -> Mapping[str, Any]:
    return {"action": _find(view), "slice": SLICE}


def _cancel(write: Write) -> Done:
    found = _find(write.view)
    if found.state != RUNNING:
        raise DrainError(f"the {found.verb} is {found.state} already; {count(found.done, 'job')} done")
    found.stop.set()
    to = write.view.url("dead_action", action=found.name)
    return Done(f"the {found.verb} ends after at most {count(SLICE, 'more job')}", to)


ROUTES = [
    page(
        "/dead/actions/{action}",
        _show,
        name="dead_action",
        template="dead_action.html",
        live="dead_action_live.html",
    ),
    action("/dead/actions/{action}/cancel", _cancel, name="dead_action_cancel"),
]
