"""ASGI application."""

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
    """Return the web interface as an ASGI application, to serve or to mount under any prefix.

    Without `token`, `trust_header` and `user` it is read-only. Without `private`, every visitor can read everything,
    including job arguments.

    Args:
        settings: Settings with database and Redis; by default from the environment.
        hosts: Allowed host names, apart from localhost and IP addresses, with a port unless 80 or 443; `*` allows
            all, if the application checks them itself.
        token: Secret that allows writes; by default `DRAIN_WEB_TOKEN`.
        trust_header: Header of an authenticating proxy that names a user with write access. The proxy must remove it
            from incoming requests.
        user: Callback that takes the request and returns a user with write access, or None.
        private: Require write access to read, too.
        live: Pages update live; set False on servers with one thread per open connection.
        statistics: File written by `drain stats --html FILE`, shown under Statistics.

    Raises:
        ConfigError: A setting is missing or invalid.
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
