"""Check for free ports."""

from __future__ import annotations

import socket

from drain.errors import EmbeddedError


def require_free(host: str, ports: dict[str, int | None]) -> None:
    """Check that the ports are free; EmbeddedError names the option of one in use."""
    for option, port in ports.items():
        if port is None:
            continue
        with socket.socket() as probe:
            # Like PostgreSQL, ignore recently ended connections.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise EmbeddedError(
                    f"port {port} of {host}: {(error.strerror or str(error)).lower()}; choose another with {option}"
                ) from None
