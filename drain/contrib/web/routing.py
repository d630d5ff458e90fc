"""Pages: the function of a page returns values, and its template shows them; the live part is shown again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from drain.contrib.web import files
from drain.contrib.web.site import Site
from drain.contrib.web.views import View, address

# Values of a page, from a look at it; or a whole answer.
Show = Callable[[View], Mapping[str, Any] | Response]

# Links at the top of each page: name of a route, and its words. A page that is not there has no link.
NAVIGATION = (
    ("overview", "Queues"),
    ("dead", "Dead"),
    ("cron", "Cron"),
    ("workers", "Workers"),
    ("bulk", "Bulk runs"),
    ("statistics", "Statistics"),
    ("search", "Search"),
)


class PageRoute(Route):
    """Route of a page.

    Attributes:
        show: Function that returns the values of the page.
        live: Template of the live part, which is within the page's template; "" for a page that stands still.
    """

    show: Show
    live: str


def page(
    path: str, show: Show, *, name: str, template: str, live: str = "", is_open: bool = False
) -> PageRoute:
    """Make the route of a page.

    Args:
        path: Path, such as `/queues/{queue}`.
        show: Called in a thread; returns the values of the template, or a whole answer.
        name: Name of the page, for `url`.
        template: Template of the page; it extends `layout.html`.
        live: Template of its live part, rendered with the same values; the page includes it within `live(…)`.
        is_open: Everybody sees the page, even where the others are private.
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
    """Answer a visitor who may not read: with the form that takes the token, or a refusal."""
    site, root = site_of(request), root_of(request)
    if site.access.takes_token:
        to = request.scope["path"].removeprefix(root)
        return RedirectResponse(address(site, root, "login", {"to": to}), status_code=303)
    values = {
        "title": "Not allowed",
        "text": "This page is private: log in to the application.",
        "again": False,
    }
    return respond(request, "failure.html", values, status=403)


def site_of(request: Request) -> Site:
    """Return the site that the request belongs to."""
    site: Site = request.app.state.site
    return site


def root_of(request: Request) -> str:
    """Return the prefix under which the application is mounted; "" for none."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def respond(
    request: Request, template: str, values: Mapping[str, Any], *, status: int = 200, live: str = ""
) -> Response:
    """Render a page for a visitor, with its navigation and the secret of its forms."""
    site, root = site_of(request), root_of(request)
    page_path = request.scope["path"].removeprefix(root) or "/"
    # A page of a list is looked at by one visitor, and stands still.
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
    """Return the values that every template has, the live parts too."""
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
        "navigation": [(name, words) for name, words in NAVIGATION if name in names],
        "redis_problem": site.redis.problem,
    }
