"""Clients: the address that a limit counts by, and the address and scheme that a proxy passes on."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send


class Visitor(NamedTuple):
    """Visitor, for limits: network of the address, and the cookie of the visit, which anybody may choose."""

    network: str
    visit: str


NOBODY = Visitor("", "")


def network_of(host: str) -> str:
    """Return the address of a client; of IPv6 its network, since one machine has any number of addresses there."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        if address.version == 6 and not address.ipv4_mapped:
            return str(ipaddress.ip_network((int(address), 64), strict=False))
    return host


class BehindProxy:
    """ASGI middleware that takes the client's address and the scheme from the headers of the one proxy in front.

    Of several addresses the last one counts: the proxy has added it, and a client can send what stands before.

    Args:
        app: Application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, as the proxy has seen it."""
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
