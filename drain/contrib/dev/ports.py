"""Check that the ports of the servers are free, before a server is started."""

from __future__ import annotations

import socket

from drain.errors import EmbeddedError


def require_free(host: str, ports: dict[str, int | None]) -> None:
    """Make sure that servers can listen on these ports.

    Args:
        host: Address to listen on.
        ports: Port by the option that names it; None for no port.

    Raises:
        EmbeddedError: A port is in use, or may not be used; the text names the option.
    """
    for option, port in ports.items():
        if port is None:
            continue
        with socket.socket() as probe:
            # As PostgreSQL sets it: a connection that ended within the last minute does not keep the port busy.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise EmbeddedError(
                    f"port {port} of {host}: {(error.strerror or str(error)).lower()}; choose another with {option}"
                ) from None
