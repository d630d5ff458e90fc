"""The page of `drain stats --html FILE`, sandboxed: it needs no scripts, and those of other files must not run."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse

from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.errors import DrainError

_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_MEGABYTE = 1_000_000
_MOST_BYTES = 100 * _MEGABYTE


class NoStatisticsError(DrainError):
    """There is no statistics page."""


def _show(view: View) -> Mapping[str, Any]:
    path = view.site.statistics
    found = _look(path)
    return {
        "file": str(path) if path else "",
        "written_at": found[0] if found else None,
        "megabytes": found[1] / _MEGABYTE if found else None,
        "now": datetime.now(UTC),
    }


def _serve(view: View) -> FileResponse:
    path = view.site.statistics
    if path is None or _look(path) is None:
        raise NoStatisticsError("there is no page of statistics: `drain stats --html FILE` writes one")
    return FileResponse(
        path,
        media_type="text/html; charset=utf-8",
        headers={"Content-Security-Policy": _POLICY, "Cache-Control": "private, no-cache"},
    )


def _look(path: Path | None) -> tuple[datetime, int] | None:
    if path is None:
        return None
    with suppress(OSError, ValueError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_BYTES:
            return datetime.fromtimestamp(found.st_mtime, UTC), found.st_size
    return None


ROUTES = [
    page("/statistics", _show, name="statistics", template="statistics.html"),
    page("/statistics/page", _serve, name="statistics_page", template=""),
]
