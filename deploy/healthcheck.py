"""Health check of a container: exit code 1 if its `drain run` or `drain work` is unhealthy.

A command without a port cannot be asked, nor can one that is still starting or has ended. So a refused connection does
not count as unhealthy.
"""

from __future__ import annotations

import http.client
import os
import sys

# Variables with the ports of `drain run` and of `drain work`; a container runs at most one of them.
_VARIABLES = ("DRAIN_METRICS_PORT", "DRAIN_WORK_METRICS_PORT")
# Timeout for the answer.
_SECONDS = 3.0


def sickness(port: int, seconds: float = _SECONDS) -> str | None:
    """Ask for the reason why the process behind a port is unhealthy; None if it is healthy, or the port is closed.

    Args:
        port: Port on this machine that serves /healthz; 0 for none.
        seconds: Timeout for the answer.
    """
    if not port:
        return None
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        client.request("GET", "/healthz")
        answer = client.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except ConnectionRefusedError:
        return None
    except (OSError, http.client.HTTPException) as error:
        return f"port {port}: {error or type(error).__name__}"
    finally:
        client.close()
    return None if answer.status == http.client.OK else text


def main() -> int:
    """Ask the ports that the variables name, and print the reasons; returns the exit code."""
    ports = {int(os.environ.get(variable) or 0) for variable in _VARIABLES}
    reasons = [reason for reason in map(sickness, ports) if reason is not None]
    sys.stdout.writelines(f"{reason}\n" for reason in reasons)
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
