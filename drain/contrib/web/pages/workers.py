"""Workers by host, and running jobs, oldest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

from drain.contrib.web.forms import FormError
from drain.contrib.web.paging import ROWS, page_of, place_of
from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.jobs.progress import fields_of
from drain.read import claimed, queries
from drain.read.claimed import After, host_and_pid
from drain.wire import ProgressBoard
from drain.wire.live_workers import LiveWorker, LiveWorkers

_READ, _SHOWN = 1000, 200
_FEW = 10
# Heartbeat age of a silent process; one is sent every 15 seconds.
_SILENT_SECONDS = 40
_LONGEST_TEXT = 100


def _show(view: View) -> Mapping[str, Any]:
    host, queue = view.text("host"), view.text("queue")
    with view.snapshot() as connection:
        now = queries.now(connection)
        longest = claimed.longest(connection, _FEW)
        over = claimed.over(connection, _FEW)
        counts = claimed.by_process(connection)
        too_many = claimed.are_too_many(connection)
    found = view.site.redis.ask(lambda _: _read_workers(view))
    workers, names = found if found is not None else ([], 0)
    by_process: Counter[tuple[str, int]] = Counter()
    for name, number in counts.items():
        by_process[host_and_pid(name or "")] += number
    shown = [each for each in workers if host in ("", each.host) and queue in ("", *each.queues)]
    registered = {(each.host, each.pid) for each in workers}
    return {
        "now": now,
        "workers": [_worker(each, by_process, now, view.site.settings.namespace) for each in shown[:_SHOWN]],
        "hosts": Counter(each.host for each in workers).most_common(_SHOWN),
        "number": len(shown),
        "names": names,
        "more": names > _READ or len(shown) > _SHOWN,
        "is_known": found is not None,
        "host": host,
        "queue": queue,
        "running": _with_progress(view, longest),
        "over": _with_progress(view, over),
        "most": claimed.MOST_CLAIMS if too_many else None,
        "claims": sum(by_process.values()),
        "absent": [(*process, number) for process, number in by_process.items() if process not in registered][
            :_FEW
        ]
        if found is not None
        else [],
    }


def _show_running(view: View) -> Mapping[str, Any]:
    place = place_of(view, (str, int))
    with view.snapshot() as connection:
        now = queries.now(connection)
        rows = claimed.longest(connection, ROWS + 1, _after(place))
        too_many = claimed.are_too_many(connection)
    jobs = page_of(view, rows, lambda row: (row["claimed_at"].isoformat(), row["id"]))
    return {
        "now": now,
        "page": jobs,
        "running": _with_progress(view, jobs.rows),
        "most": claimed.MOST_CLAIMS if too_many else None,
    }


def _after(place: Sequence[Any] | None) -> After | None:
    if place is None:
        return None
    try:
        at = datetime.fromisoformat(place[0])
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise FormError("the address is not a page of this list: start from the first page")
    return After(at, place[1])


def _read_workers(view: View) -> tuple[list[LiveWorker], int]:
    with closing(LiveWorkers(view.site.settings.redis_url)) as live:
        found, names = live.page(_READ)
    return sorted(found, key=lambda each: (each.host, each.pid, each.name)), names


def _worker(
    worker: LiveWorker, by_process: Mapping[tuple[str, int], int], now: datetime, namespace: str
) -> dict[str, Any]:
    age = (now - worker.seen_at).total_seconds() if worker.seen_at else 0.0
    prefix, _, _ = worker.rq_id.rpartition("-")
    named, _, number = prefix.rpartition("-")
    is_job = named == namespace and number.isdecimal() and number.isascii() and len(number) < 20
    return {
        **worker._asdict(),
        "is_silent": age > _SILENT_SECONDS,
        "job_id": int(number) if is_job else None,
        "claims": by_process.get((worker.host, worker.pid), 0),
    }


def _with_progress(view: View, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    settings = view.site.settings

    def read(_: object) -> dict[int, dict[str, Any]]:
        with closing(ProgressBoard.at(settings.redis_url, settings.namespace)) as board:
            return board.read_many([row["id"] for row in rows])

    found = (view.site.redis.ask(read) if rows else None) or {}
    return [
        row
        | {
            "seconds": (row["now"] - row["claimed_at"]).total_seconds(),
            "process": host_and_pid(row["claimed_by"] or ""),
            "progress": _progress(found.get(row["id"]), row["fencing_token"]),
        }
        for row in rows
    ]


def _progress(found: dict[str, Any] | None, token: int) -> dict[str, Any] | None:
    fields = fields_of(found, token) if found else None
    if fields is None:
        return None
    done, total, text = fields["done"], fields["total"], fields["text"]
    of = "" if total is None else f" of {total:,} ({int(100 * done / total) if total else 100} %)"
    words = f"{done:,}{of}{f', {text[:_LONGEST_TEXT]}' if text else ''}"
    return {"words": words, "done": done, "total": total}


ROUTES = [
    page("/workers", _show, name="workers", template="workers.html", live="workers_live.html"),
    page(
        "/workers/running", _show_running, name="running", template="running.html", live="running_live.html"
    ),
]
