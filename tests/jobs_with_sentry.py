"""Jobs of worker processes whose exceptions go to a file, with all that Sentry's SDK integrates by itself."""

import os

from drain.contrib.telemetry.sentry import DrainIntegration
from drain.workers import job
from tests.envelopes import keeping

if "ENVELOPES" in os.environ:
    ours = [DrainIntegration()] if "OURS" in os.environ else []
    keeping(os.environ["ENVELOPES"], integrations=ours)


@job
def fine(label: str) -> None:
    pass


@job(max_attempts=1)
def fail(label: str) -> None:
    raise ValueError(f"no {label}")


@job(max_attempts=1)
async def fail_in_loop(label: str) -> None:
    raise ValueError(f"no {label}")


@job(max_attempts=1, isolated=True)
def fail_isolated(label: str) -> None:
    raise ValueError(f"no {label}")


@job(max_attempts=5)
def fail_once_more(label: str) -> None:
    raise ValueError(f"no {label}")
