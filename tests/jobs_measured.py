"""Jobs that a worker process measures: of hostile names, and such as fail in all ways."""

import os
import signal
import time

from drain import job
from drain.workers import Dead, Defer
from tests.jobs_for_tests import _leave

HOSTILE = 'a"b\\c{}\n# TYPE drain_leader gauge\ndrain_leader 0é'
SOON = 0.01
FEW = 260


@job(name=HOSTILE)
def hostile(label: str) -> None:
    _leave(label)


@job
def note(label: str) -> None:
    _leave(label)


@job(isolated=True, max_attempts=1)
def isolated(label: str) -> None:
    raise KeyError(label)


@job
async def awaited(label: str) -> None:
    del label


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def fail_once(label: str) -> None:
    if _leave(label) == 1:
        raise ValueError(label)


@job
def give_up(label: str) -> None:
    raise Dead(label)


@job
def defer_once(label: str) -> None:
    if _leave(label) == 1:
        raise Defer(0.01)


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def kill_the_process_once(label: str) -> None:
    if _leave(label) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def nothing(label: str) -> None:
    del label


MANY = [f"many.{number:03}" for number in range(FEW)]
# Not in the process of the tests, whose other files list what is registered.
if os.environ.get("DRAIN_JOBS") == __name__:
    for name in MANY:
        job(name=name)(nothing)


@job(lease_seconds=2, max_attempts=1)
def outlive_its_lease(label: str) -> None:
    """Wait for the interruption by the loss of the lease."""
    _leave(label)
    time.sleep(600)
