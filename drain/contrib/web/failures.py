"""Error pages."""

from __future__ import annotations

import logging
from collections.abc import Callable

import psycopg
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from drain.contrib.web.access import TooManyTokensError
from drain.contrib.web.guards import HEADERS
from drain.contrib.web.routing import respond
from drain.contrib.web.writes import RefusedError
from drain.errors import DrainError, SchemaError, UnavailableError, UnknownJobError
from drain.formatting import visible

log = logging.getLogger(__name__)

# Seconds until a browser reloads when the database is unavailable.
_AGAIN_SECONDS = 5


def _page(request: Request, status: int, title: str, text: str) -> Response:
    values = {"status": status, "title": title, "text": visible(text), "again": status == 503}
    response = respond(request, "failure.html", values, status=status)
    if status == 503:
        response.headers["Retry-After"] = response.headers["Refresh"] = str(_AGAIN_SECONDS)
    return response


def _unavailable(request: Request, error: Exception) -> Response:
    return _page(request, 503, "Not available now", str(error))


def _unknown(request: Request, error: Exception) -> Response:
    return _page(request, 404, "Not here", str(error))


def _refused(request: Request, error: Exception) -> Response:
    return _page(request, 403, "Not allowed", str(error))


def _unusable(request: Request, error: Exception) -> Response:
    return _page(request, 400, "Not done", str(error))


def _too_many(request: Request, _error: Exception) -> Response:
    return _page(request, 429, "Too many wrong tokens", "Wait for a minute, and try again.")


def _of_postgres(request: Request, error: Exception) -> Response:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        reason = error.diag.message_primary or "no right"
        text = f"PostgreSQL refused: {reason}; `drain roles` prints the rights of each role"
        return _page(request, 403, "The role of the page lacks a right", text)
    if isinstance(error, psycopg.errors.CheckViolation):
        return _unusable(request, Exception(f"PostgreSQL refused: {error.diag.message_primary}"))
    if isinstance(error, psycopg.OperationalError | psycopg.errors.ReadOnlySqlTransaction):
        return _unavailable(request, error)
    log.error("a page failed: %s", error, exc_info=error, extra={"event": "web_failed"})
    return _page(request, 500, "The page failed", "The log has the reason.")


def _of_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    title = "There is no such page" if status == 404 else "Not allowed"
    return _page(request, status, title, "The links above lead to all pages.")


def _any(request: Request, error: Exception) -> Response:
    log.error("a page failed: %s", error, exc_info=error, extra={"event": "web_failed"})
    response: Response
    try:
        response = _page(request, 500, "The page failed", "The log has the reason.")
    # E.g. from the application's user callback.
    except Exception:  # noqa: BLE001
        response = PlainTextResponse("The page failed. The log has the reason.\n", status_code=500)
    # This response bypasses the guard.
    response.headers.update(HEADERS | {"Cache-Control": "no-store"})
    return response


HANDLERS: dict[int | type[Exception], Callable[[Request, Exception], Response]] = {
    UnavailableError: _unavailable,
    SchemaError: _unavailable,
    UnknownJobError: _unknown,
    RefusedError: _refused,
    TooManyTokensError: _too_many,
    DrainError: _unusable,
    psycopg.Error: _of_postgres,
    HTTPException: _of_http,
    Exception: _any,
}
