"""Health of the container that this runs in: exit code 1 if `drain run` or `drain work` there is sick.

Commands that serve no port cannot be asked, and neither can one that is still starting or has ended: a connection that
is refused is no sign of illness.
"""

from __future__ import annotations

import http.client
import os
import sys

# Port of `drain run`, and that of `drain work`: one of them runs in the container, if any.
_VARIABLES = ("DRAIN_METRICS_PORT", "DRAIN_WORK_METRICS_PORT")
_SECONDS = 3.0


def sickness(port: int, seconds: float = _SECONDS) -> str | None:
    """Reason why the process behind this port is sick; None if it is well, or nothing listens there.

    Args:
        port: Port on this machine that serves /healthz; 0 for none.
        seconds: Longest wait for an answer.
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
    """Ask the ports that the variables name; returns the exit code."""
    ports = {int(os.environ.get(variable) or 0) for variable in _VARIABLES}
    reasons = [reason for reason in map(sickness, ports) if reason is not None]
    sys.stdout.writelines(f"{reason}\n" for reason in reasons)
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
