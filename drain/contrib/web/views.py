"""Argument of the function of a page: its site, the parts of its address, sessions and Redis."""

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
from drain.jobs.cancelling import LARGEST_ID


@dataclass(frozen=True)
class View:
    """One look at a page: by a visitor, or by the thread that measures for all who listen.

    Attributes:
        site: Parts that all pages share.
        root: Prefix under which the application is mounted; "" for none.
        params: Parts of the address, such as `queue`.
        query: Texts behind the `?`.
        who: Name of the visitor who may write; None for one who only reads, and for the thread.
        is_thread: The thread looks, for all who listen.
    """

    site: Site
    root: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    query: QueryParams = field(default_factory=QueryParams)
    who: str | None = None
    is_thread: bool = False

    def reading(self) -> AbstractContextManager[Connection]:
        """Lend a session that only reads, in autocommit mode with no transaction open."""
        return self.site.sessions.reading()

    def snapshot(self) -> AbstractContextManager[Connection]:
        """Lend a session in a transaction with one snapshot, in which no plan reads a whole table."""
        return self.site.sessions.snapshot()

    def text(self, name: str) -> str:
        """Return a text behind the `?`, without blanks at its ends; "" if there is none."""
        return self.query.get(name, "").strip()

    def job_id(self) -> int:
        """Return the id of the job that the address names.

        Raises:
            UnknownJobError: No job can have it.
        """
        text = str(self.params["job_id"])
        if not re.fullmatch("-?[0-9]{1,19}", text, re.ASCII) or abs(int(text)) > LARGEST_ID:
            raise UnknownJobError(f"The id of a job is a whole number up to {LARGEST_ID}, not {text[:100]}.")
        return int(text)

    def url(self, name: str, /, **params: Any) -> str:
        """Return the address of a page or an action by its name; parameters that its path lacks go behind the `?`."""
        return address(self.site, self.root, name, params)


def address(site: Site, root: str, name: str, params: Mapping[str, Any]) -> str:
    """Return the address of a page or an action under this prefix."""
    route = next((each for each in site.router.routes if isinstance(each, Route) and each.name == name), None)
    if route is None:
        raise LookupError(f"no page is called {name!r}")
    in_path = {key: value for key, value in params.items() if key in route.param_convertors}
    query = urlencode(
        {key: value for key, value in params.items() if key not in in_path and value not in (None, "")}
    )
    # A text of others may have any character, a slash as well, which Starlette itself refuses.
    path = route.path_format.format_map({key: quote(str(value), safe=":") for key, value in in_path.items()})
    return f"{root}{path}{'?' if query else ''}{query}"
