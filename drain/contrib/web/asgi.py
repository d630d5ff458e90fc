"""The application: all parts of the page, put together for an ASGI server or another application."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware

from drain.config import Settings
from drain.contrib.web import files, stream
from drain.contrib.web.access import Access, User
from drain.contrib.web.failures import HANDLERS
from drain.contrib.web.guards import Guard
from drain.contrib.web.pages import ROUTES
from drain.contrib.web.site import Site


def application(
    settings: Settings | None = None,
    *,
    hosts: Collection[str] = (),
    token: str | None = None,
    trust_header: str | None = None,
    user: User | None = None,
    private: bool = False,
    live: bool = True,
    statistics: str | Path | None = None,
) -> Starlette:
    """Make the page, for an ASGI server, or to be mounted in another application under any prefix.

    Without `token`, `trust_header` and `user` nobody can write. Without `private`, whoever reaches the page can read
    it, arguments of jobs included.

    Args:
        settings: Settings that name the database and Redis; by default those of the environment.
        hosts: Host names that browsers use for the page, besides localhost and addresses, with their port unless 80
            or 443; `*` for all, where the application checks them itself.
        token: Secret that allows to write; by default `DRAIN_WEB_TOKEN`.
        trust_header: Header in which an authenticating proxy names the user, who may write. The proxy must remove it
            from what a visitor sends.
        user: Function of the application: is given the request, and returns the name of the user who may write; None
            for somebody who may not.
        private: Who may not write may not read either.
        live: Pages follow what happens; False for a server that has a thread for each open connection.
        statistics: Page that `drain stats --html FILE` writes, to be shown under Statistics.

    Raises:
        ConfigError: A setting is missing or cannot be used.
    """
    if token is None:
        token = os.environ.get("DRAIN_WEB_TOKEN") or None
    access = Access(token=token, trust_header=trust_header, user=user, is_private=private)
    made = Starlette(
        routes=[*ROUTES, stream.ROUTE, files.ROUTE],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers=HANDLERS,
    )
    made.state.site = site = Site(
        settings or Settings.from_environment(),
        access,
        is_live=live,
        statistics=Path(statistics) if statistics else None,
    )
    site.router = made.router
    return made
