"""Addresses for servers to listen on: free ports, and Unix sockets whose paths are short enough."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# Upper bound of the length of a Unix socket's path, in bytes. Leaves room for a NUL in the shortest `sun_path` in use,
# the 104 bytes of macOS.
_LONGEST_SOCKET_PATH = 100


def free_port() -> int:
    """Find a port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def directory_with_room_for(socket_name: str, preferred: Path, fallback: Path) -> Path:
    """Choose the directory of a Unix socket: the preferred one, unless the path would be too long there."""
    fits = len(os.fsencode(preferred / socket_name)) <= _LONGEST_SOCKET_PATH
    return preferred if fits else fallback
