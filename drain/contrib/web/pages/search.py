"""Search all tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drain.contrib.web import search
from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.errors import DrainError
from drain.read import queries

_TITLES = {"staged": "Waiting", "inflight": "In flight", "finished": "Completed", "dead": "Dead"}
_TIMES = {"staged": "Staged", "inflight": "Moved", "finished": "Completed", "dead": "Died"}


def _show(view: View) -> Mapping[str, Any]:
    word = view.text("q")
    values: dict[str, Any] = {
        "word": word[: search.LONGEST_SEARCH],
        "longest": search.LONGEST_SEARCH,
        "looked_at": search.LOOKED_AT,
        "most": search.MOST,
        "largest": search.LARGEST_ARGUMENTS // 1024,
        "filters": search.FILTERS,
        "states": search.STATES,
        "titles": _TITLES,
        "times": _TIMES,
        "problem": "",
        "result": None,
    }
    if not word:
        return values
    try:
        query = search.parse(word[: search.LONGEST_SEARCH])
    except DrainError as error:
        return values | {"problem": f"{str(error)[:1].upper()}{str(error)[1:]}."}
    given = [*query.words, *query.filters.values()]
    if len(word) > search.LONGEST_SEARCH or not all(map(search.is_searchable, given)):
        return values | {"problem": f"Search for a storable text of at most {search.LONGEST} characters."}
    with view.reading() as connection:
        result = search.search(connection, query)
        now = queries.now(connection)
    return values | {"result": result, "now": now, "number": sum(map(len, result.matches.values()))}


ROUTES = [page("/search", _show, name="search", template="search.html")]
