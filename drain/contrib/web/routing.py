"""Page routes: a function returns values, and a template renders them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from drain.contrib.web import files
from drain.contrib.web.site import Site
from drain.contrib.web.views import View, address

Show = Callable[[View], Mapping[str, Any] | Response]

# Links at the top: route and words. Routes that do not exist are left out.
NAVIGATION = (
    ("overview", "Overview"),
    ("flows", "Flows"),
    ("dead", "Failures"),
    ("cron", "Schedules"),
    ("workers", "Workers"),
    ("bulk", "Bulk runs"),
    ("statistics", "Statistics"),
)
# Keys after `g`.
SHORTCUTS = {
    "overview": "o",
    "flows": "l",
    "dead": "f",
    "cron": "s",
    "workers": "w",
    "bulk": "b",
    "statistics": "t",
}
# States of jobs, in the words of the glossary.
STATES = {
    "staged": "Waiting",
    "waiting": "Waiting",
    "scheduled": "Scheduled",
    "blocked": "Blocked",
    "paused": "Paused",
    "queued": "Queued",
    "running": "Running",
    "retrying": "Retrying",
    "deferred": "Deferred",
    "parked": "Parked",
    "called_back": "Called back",
    "stalled": "Stalled",
    "finished": "Completed",
    "superseded": "Superseded",
    "dead": "Dead",
    "cancelled": "Cancelled",
    "expired": "Expired",
}


class PageRoute(Route):
    """Route of a page; `live` is its live part's template, if any."""

    show: Show
    live: str


def page(
    path: str, show: Show, *, name: str, template: str, live: str = "", is_open: bool = False
) -> PageRoute:
    """Return a page's route.

    Args:
        show: Called in a thread.
        live: Template of the live part, which the page includes within `live(…)`.
        is_open: Visible to all, even if other pages are private.
    """

    def answer(request: Request) -> Response:
        site = site_of(request)
        who = site.access.who(request)
        if not is_open and who is None and site.access.is_private:
            return turn_away(request)
        view = View(site, root_of(request), request.path_params, request.query_params, who)
        values = show(view)
        return values if isinstance(values, Response) else respond(request, template, values, live=live)

    route = PageRoute(path, answer, name=name, methods=["GET"])
    route.show, route.live = show, live
    return route


def turn_away(request: Request) -> Response:
    """Send a visitor who may not read to the login form, or refuse."""
    site, root = site_of(request), root_of(request)
    if site.access.takes_token:
        to = request.scope["path"].removeprefix(root)
        return RedirectResponse(address(site, root, "login", {"to": to}), status_code=303)
    values = {
        "title": "Not allowed",
        "text": "This page is private: sign in to the application.",
        "again": False,
    }
    return respond(request, "failure.html", values, status=403)


def site_of(request: Request) -> Site:
    """Return the request's site."""
    site: Site = request.app.state.site
    return site


def root_of(request: Request) -> str:
    """Return the mount prefix; "" for none."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def respond(
    request: Request, template: str, values: Mapping[str, Any], *, status: int = 200, live: str = ""
) -> Response:
    """Render a page with its navigation and form secret."""
    site, root = site_of(request), root_of(request)
    page_path = request.scope["path"].removeprefix(root) or "/"
    # A page with parameters belongs to one visitor, and is not live.
    follows = live and site.is_live and not request.query_params
    stream = address(site, root, "stream", {"page": page_path}) if follows else ""
    common = {
        **of_all_pages(site, root),
        "access": site.access,
        "current": root + page_path,
        "notice": site.access.notice(request),
        "path": page_path,
        "secret": site.access.secret_of_form(request),
        "stream": stream,
        "who": site.access.who(request),
    }
    response = HTMLResponse(site.templates.render(template, {**common, **values}), status_code=status)
    site.access.forget_notice(request, response)
    site.access.remember_visit(request, response)
    return response


def of_all_pages(site: Site, root: str) -> dict[str, Any]:
    """Return values for all templates, including live parts."""
    names = {getattr(route, "name", "") for route in site.router.routes}

    def url(name: str, /, **params: Any) -> str:
        return address(site, root, name, params)

    def static(name: str) -> str:
        return address(site, root, "static", {"name": name, "v": files.version_of(name)})

    return {
        "has": names.__contains__,
        "static": static,
        "url": url,
        "root": root,
        "shortcuts": SHORTCUTS,
        "titles_of_states": STATES,
        "navigation": [(name, words) for name, words in NAVIGATION if name in names],
        "redis_problem": site.redis.problem,
    }
