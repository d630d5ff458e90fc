"""`python -m tests.lost_as_they_end`: jobs that return just when their lease is lost.

Between two jobs a SIGALRM ends this process, as it would an RQ worker that has its own handler no more.
"""

import logging
import random
import signal
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from drain.database import postgres
from drain.tables import cancellations, finishes, leases
from drain.tables.claims import Claim
from drain.workers import job
from drain.workers.context.current import Attempt
from drain.workers.execution.attempt import run
from drain.workers.execution.outcome import Finished, Lost
from drain.workers.lease import heartbeat, interruption
from drain.workers.lease.extension import Extender
from drain.workers.lease.heartbeat import Heartbeat

# A busy machine does fewer rounds.
ROUNDS, MOST_SECONDS = 1500, 30.0
SECONDS = 0.002

CLAIM = Claim(
    id=1,
    job_name="tests.end",
    job_args="[]",
    job_kwargs="{}",
    queue="default",
    tag=None,
    context=None,
    attempts=1,
    max_attempts=3,
    timeout_seconds=30,
    lease_seconds=2 * SECONDS,
    fencing_token=1,
    lease_expires_at=datetime.now(UTC),
    expired=False,
    failed_before=False,
    salt=None,
    installation=UUID(int=0),
    worker="w",
)


@job(name=CLAIM.job_name)
def end() -> None:
    """Work without a pause, so that the signal may come at any instruction."""
    until = time.perf_counter() + random.uniform(0, 4 * SECONDS)
    while time.perf_counter() < until:
        pass


def refuse(*_: Any) -> dict[int, datetime]:
    return {}


def main() -> None:
    logging.disable()
    # Else the other thread waits for its turn until the job has ended.
    sys.setswitchinterval(SECONDS / 100)
    heartbeat._SHORTEST_PAUSE_SECONDS = 0.0001
    interruption.AGAIN_SECONDS = 0.0005
    Extender._connected = lambda *_: None  # type: ignore[assignment, method-assign]
    postgres.time_limit = lambda *_: nullcontext()  # type: ignore[assignment]
    leases.extend_many = refuse  # type: ignore[assignment]
    finishes.is_finished = lambda *_: False
    cancellations.is_cancelled = lambda *_: False
    ended: set[type] = set()
    until = time.monotonic() + MOST_SECONDS
    for _ in range(ROUNDS):
        if time.monotonic() > until and len(ended) > 1:
            break
        held: list[Attempt] = []
        kept = Heartbeat("postgresql://nowhere", held.copy)
        held.append(Attempt(CLAIM, time.monotonic(), kept, "postgresql://nowhere"))
        ended.add(type(run(held[0])))
        kept.stop()
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert ended == {Finished, Lost}, ended
    sys.stdout.write("all at work\n")


if __name__ == "__main__":
    main()
