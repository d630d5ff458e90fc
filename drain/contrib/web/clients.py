"""Client addresses."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send


class Visitor(NamedTuple):
    """Network, and visit cookie, which clients choose freely."""

    network: str
    visit: str


NOBODY = Visitor("", "")


def network_of(host: str) -> str:
    """Return the IPv4 address, or the IPv6 network, where a machine may have many addresses."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.version == 6 and not address.ipv4_mapped:
            return str(ipaddress.ip_network((int(address), 64), strict=False))
    return host


class BehindProxy:
    """ASGI middleware that takes client address and scheme from a proxy's headers.

    The last of several addresses counts: the proxy appended it; clients can forge the others.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            _, _, address = ",".join(headers.getlist("x-forwarded-for")).rpartition(",")
            scheme = headers.get("x-forwarded-proto", "")
            scope = {
                **scope,
                "client": (address.strip(), 0) if address.strip() else scope["client"],
                "scheme": scheme if scheme in ("http", "https") else scope["scheme"],
            }
        await self._app(scope, receive, send)
