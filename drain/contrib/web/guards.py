"""Request checks, and response headers."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Keep the referrer: without it browsers send no origin with a form.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_SAFE = ("GET", "HEAD")
_PORTS = {"http": 80, "https": 443}


class Guard:
    """ASGI middleware that rejects unknown host names and forms from other origins.

    Against DNS rebinding, a foreign site whose name points here. IP addresses need no check.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._places = {_place(host) for host in hosts}
        self._names = {"localhost", *(name for name, _ in self._places)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and forward the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, text in HEADERS.items():
                    # Other applications' pages may have a stricter policy.
                    headers.setdefault(name, text)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        answer = PlainTextResponse(refusal[1], status_code=refusal[0]) if refusal else self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_allowed(_place(host)[0]):
            return 400, "The page is not known under this name of a host. Name it with --allow-host.\n"
        if scope["method"] not in _SAFE and not self._is_own(headers.get("origin", ""), host):
            return 403, (
                "The form comes from another site or port, or the browser does not name its origin. "
                "Behind a proxy, name the public address with --allow-host NAME:PORT.\n"
            )
        return None

    def _is_allowed(self, name: str) -> bool:
        return "*" in self._names or name in self._names or _is_address(name)

    def _is_own(self, origin: str, host: str) -> bool:
        """Return True for this page's origin, port included; a proxy may change the scheme."""
        scheme, _, netloc = origin.partition("://")
        default = _PORTS.get(scheme)
        name, port = _place(netloc)
        own = {(name, default if port is None else port) for name, port in (_place(host), *self._places)}
        return default is not None and bool(name) and (name, default if port is None else port) in own


def _place(netloc: str) -> tuple[str, int | None]:
    with suppress(ValueError):
        parts = urlsplit(f"//{netloc}")
        return (parts.hostname or "").rstrip(".").lower(), parts.port
    return "", None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
