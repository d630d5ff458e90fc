"""One queue: rules, keys, who is next, pause and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drain import queues
from drain.web.routing import page
from drain.web.views import View
from drain.web.writes import Done, Write, action


def _show(view: View) -> Mapping[str, Any]:
    queue = view.params["queue"]
    with view.snapshot() as connection:
        rules = queues.show(connection, queue)
    return {"queue": queue, "rules": rules}


def _pause(write: Write) -> Done:
    queue = write.view.params["queue"]
    queues.pause(write.connection, queue, reason=write.form.text("reason") or None)
    return Done(f"queue {queue} is paused", write.view.url("queue", queue=queue))


ROUTES = [
    page("/queues/{queue}", _show, name="queue", template="queue.html", live="queue_live.html"),
    action("/queues/{queue}/pause", _pause, name="queue_pause"),
]
