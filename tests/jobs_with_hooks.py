"""Jobs and hooks of worker processes: each call leaves an effect."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import drain
from drain.workers import Dead, job
from tests.jobs_for_tests import leave_effect

MODULE = "tests.jobs_with_hooks"
URL = os.environ.get("DRAIN_DATABASE_URL", "")


def leave(*words: object) -> None:
    leave_effect(URL, " ".join(map(str, words)))


@drain.around
@contextmanager
def told(job: drain.CurrentJob) -> Iterator[None]:
    leave("begin", *job.args, job.attempt)
    try:
        yield
    finally:
        leave("end", *job.args)


@drain.around
async def told_in_the_loop(job: drain.CurrentJob) -> AsyncIterator[None]:
    leave("loop", *job.args)
    yield


@drain.on_finish
def finished(job: drain.CurrentJob) -> None:
    leave("finished", *job.args)


@drain.on_finish
def fails(job: drain.CurrentJob) -> None:
    raise RuntimeError(f"after {job.args[0]}")


@drain.on_dead
def dead(job: drain.CurrentJob, reason: str) -> None:
    leave("dead", *job.args, reason)


@job
def plain(label: str) -> None:
    leave("ran", label)


@job
async def in_loop(label: str) -> None:
    leave("ran", label)


@job(isolated=True)
def isolated(label: str) -> None:
    leave("ran", label)


@job(max_attempts=1)
def fail(label: str) -> None:
    raise ValueError(f"no {label}")


@job(isolated=True)
def give_up(label: str) -> None:
    raise Dead(f"no {label}")
