"""Style sheet and script, cached until they change."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES = {
    "drain.css": "text/css; charset=utf-8",
    "drain.js": "text/javascript; charset=utf-8",
    "drain.svg": "image/svg+xml",
}


@cache
def _content(name: str) -> bytes:
    return (files("drain.contrib.web") / "static" / name).read_bytes()


@cache
def version_of(name: str) -> str:
    """Return a short hash of a file."""
    return hashlib.sha256(_content(name)).hexdigest()[:12]


def answer(request: Request) -> Response:
    """Serve a file."""
    name = request.path_params["name"]
    if name not in _TYPES:
        raise HTTPException(404)
    keep = (
        "public, max-age=31536000, immutable"
        if request.query_params.get("v") == version_of(name)
        else "no-cache"
    )
    return Response(_content(name), headers={"Content-Type": _TYPES[name], "Cache-Control": keep})


ROUTE = Route("/static/{name}", answer, name="static", methods=["GET"])
