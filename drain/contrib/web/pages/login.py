"""Login form, and logout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from drain.contrib.web.forms import read_form
from drain.contrib.web.routing import page, respond, root_of, site_of
from drain.contrib.web.views import View, address
from drain.contrib.web.writes import RefusedError, require_form


def _show(view: View) -> Mapping[str, Any]:
    if not view.site.access.takes_token:
        raise RefusedError(
            "logging in is off: start `drain web --token-file FILE` to let users with the token write"
        )
    return {"to": view.text("to"), "problem": ""}


async def _log_in(request: Request) -> Response:
    form = await read_form(request)
    site, root = site_of(request), root_of(request)
    require_form(request, form)
    # Prevents an open redirect.
    to = form.text("to")
    is_path = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    response = RedirectResponse(
        f"{root}{to}" if is_path else address(site, root, "overview", {}), status_code=303
    )
    if site.access.log_in(request, response, form.text("token"), form.text("name")):
        return response
    values = {"to": to, "problem": "That is not the token."}
    return await run_in_threadpool(respond, request, "login.html", values, status=403)


async def _log_out(request: Request) -> Response:
    form = await read_form(request)
    site, root = site_of(request), root_of(request)
    require_form(request, form)
    response = RedirectResponse(address(site, root, "overview", {}), status_code=303)
    site.access.log_out(request, response)
    return response


ROUTES = [
    page("/login", _show, name="login", template="login.html", is_open=True),
    Route("/login", _log_in, name="login_with", methods=["POST"]),
    Route("/logout", _log_out, name="logout", methods=["POST"]),
]
