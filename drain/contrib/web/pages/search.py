"""Search all tables by id, name, tag, key or argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drain.contrib.web import search
from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.read import queries

_TITLES = {"staged": "Staged", "inflight": "In flight", "finished": "Finished", "dead": "Dead"}
_TIMES = {"staged": "Staged", "inflight": "Moved", "finished": "Finished", "dead": "Died"}


def _show(view: View) -> Mapping[str, Any]:
    word = view.text("q")
    values: dict[str, Any] = {
        "word": word[: search.LONGEST],
        "longest": search.LONGEST,
        "looked_at": search.LOOKED_AT,
        "most": search.MOST,
        "largest": search.LARGEST_ARGUMENTS // 1024,
        "titles": _TITLES,
        "times": _TIMES,
        "problem": "",
        "result": None,
    }
    if not word:
        return values
    if not search.is_searchable(word):
        return values | {
            "problem": f"Look for a text of at most {search.LONGEST} characters that can be stored."
        }
    with view.reading() as connection:
        result = search.search(connection, word)
        now = queries.now(connection)
    return values | {"result": result, "now": now, "number": sum(map(len, result.matches.values()))}


ROUTES = [page("/search", _show, name="search", template="search.html")]
