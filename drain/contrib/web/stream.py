"""Server-sent events for one tab."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from drain.contrib.web.forms import require_storable
from drain.contrib.web.live import FullError, Listener, Live, News
from drain.contrib.web.routing import PageRoute, of_all_pages, root_of, site_of
from drain.contrib.web.site import Site
from drain.contrib.web.views import View

# Send a keep-alive line after this silence.
_SILENCE_SECONDS = 15.0
_SEND_SECONDS = 10.0
_AGAIN_MILLISECONDS = 3000
# A private page's stream ends after this time; reconnecting checks access again.
_PRIVATE_SECONDS = 300.0
_LOOK_SECONDS = 0.5
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


async def stream(request: Request) -> Response:
    """Stream events of the page in `?page=`."""
    site, root = site_of(request), root_of(request)
    if not site.is_live:
        raise HTTPException(404)
    if site.access.is_private and await run_in_threadpool(site.access.who, request) is None:
        raise HTTPException(403)
    path = request.query_params.get("page", "")
    require_storable([path])
    route, params = _find(site, path)
    topic = f"{root} {path}"
    try:
        visitor = site.access.visitor(request)
        listener = site.live.listen(topic, partial(_render, site, root, route, params), visitor)
    except FullError as error:
        return PlainTextResponse(f"{error}\n", status_code=503, headers={"Retry-After": "30"})
    return _Stream(site.live, topic, listener, _PRIVATE_SECONDS if site.access.is_private else None)


ROUTE = Route("/stream", stream, name="stream", methods=["GET"])


def _find(site: Site, path: str) -> tuple[PageRoute, dict[str, object]]:
    scope: Scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": []}
    for route in site.router.routes:
        if isinstance(route, PageRoute) and route.live:
            match, found = route.matches(scope)
            if match == Match.FULL:
                return route, found["path_params"]
    raise HTTPException(404)


def _render(site: Site, root: str, route: PageRoute, params: dict[str, object]) -> str:
    values = route.show(View(site, root, params, is_thread=True))
    if isinstance(values, Response):
        return ""
    return site.templates.render(route.live, {**of_all_pages(site, root), **values})


class _Stream(Response):
    """Response that ends when the tab closes or stalls, or the program stops."""

    def __init__(self, live: Live, topic: str, listener: Listener, seconds: float | None) -> None:
        super().__init__()
        self._seconds = seconds
        self._live, self._topic, self._listener = live, topic, listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        ends = [
            asyncio.create_task(each)
            for each in (self._pass_on(send), _disconnected(receive), self._listener.ended(), _server_ends())
        ]
        # A stopping server cancels open requests, and logs an error for each that does not end normally.
        with suppress(asyncio.CancelledError):
            await asyncio.wait(ends, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        self._live.forget(self._topic, self._listener)
        for task in ends:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*ends, return_exceptions=True)
        with suppress(OSError, RuntimeError):
            async with asyncio.timeout(_SEND_SECONDS):
                await send({"type": "http.response.body", "body": b""})

    async def _pass_on(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        text = f"retry: {_AGAIN_MILLISECONDS}\n\n"
        while True:
            message = {"type": "http.response.body", "body": text.encode(), "more_body": True}
            # `wait_for` of Python 3.11 can lose a cancellation that coincides with an event.
            async with asyncio.timeout(_SEND_SECONDS):
                await send(message)
            try:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    text = _event(await self._listener.next())
            except TimeoutError:
                text = ":\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _server_ends() -> None:
    """Wait until a host application's uvicorn is stopping.

    Its lifespan shutdown waits for the last connection, thus for this stream; `should_exit` is set earlier.
    """
    while not any(
        getattr(getattr(signal.getsignal(number), "__self__", None), "should_exit", False) is True
        for number in (signal.SIGTERM, signal.SIGINT)
    ):
        await asyncio.sleep(_LOOK_SECONDS)


def _event(news: News) -> str:
    # SSE treats any line break as the end of a line.
    lines = "\n".join(f"data: {line}" for line in news.text.splitlines())
    return f"event: {news.event}\n{lines}\n\n"
