"""Argument of page functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams
from starlette.routing import Route

from drain.contrib.web.site import Site
from drain.database.postgres import Connection
from drain.errors import UnknownJobError
from drain.jobs.values import LARGEST_ID


@dataclass(frozen=True)
class View:
    """A page's request, by a visitor or the live thread.

    Attributes:
        root: Mount prefix; "" for none.
        who: User with write access; None for read-only visitors and the thread.
    """

    site: Site
    root: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    query: QueryParams = field(default_factory=QueryParams)
    who: str | None = None
    is_thread: bool = False

    def reading(self) -> AbstractContextManager[Connection]:
        """Lend a read-only autocommit session."""
        return self.site.sessions.reading()

    def snapshot(self) -> AbstractContextManager[Connection]:
        """Lend a session; see `Sessions.snapshot`."""
        return self.site.sessions.snapshot()

    def text(self, name: str) -> str:
        """Return a query parameter, stripped, or ""."""
        return self.query.get(name, "").strip()

    def job_id(self) -> int:
        """Return the path's job id; UnknownJobError if impossible."""
        text = str(self.params["job_id"])
        if not re.fullmatch("-?[0-9]{1,19}", text, re.ASCII) or abs(int(text)) > LARGEST_ID:
            raise UnknownJobError(f"The id of a job is a whole number up to {LARGEST_ID}, not {text[:100]}.")
        return int(text)

    def url(self, name: str, /, **params: Any) -> str:
        """Return an address; extra parameters form the query."""
        return address(self.site, self.root, name, params)


def address(site: Site, root: str, name: str, params: Mapping[str, Any]) -> str:
    """Return an address under a mount prefix."""
    route = next((each for each in site.router.routes if isinstance(each, Route) and each.name == name), None)
    if route is None:
        raise LookupError(f"no page is called {name!r}")
    in_path = {key: value for key, value in params.items() if key in route.param_convertors}
    query = urlencode(
        {key: value for key, value in params.items() if key not in in_path and value not in (None, "")}
    )
    # Starlette refuses values with a slash.
    path = route.path_format.format_map({key: quote(str(value), safe=":") for key, value in in_path.items()})
    return f"{root}{path}{'?' if query else ''}{query}"
