"""Rehearsal in a separate process."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from time import monotonic, sleep
from typing import Any

from drain.contrib.rehearsal.past import End, PastJob
from drain.contrib.rehearsal.rehearsal import Rehearsed, rehearse
from drain.contrib.rehearsal.session import Rows, Written
from drain.errors import DrainError
from drain.jobs import registry
from drain.workers.context import django_connections
from drain.workers.exits import describe_exit

# After the job's limit, for its alarm to take effect.
_GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_BYTES = 65_536


def rehearse_isolated(database_url: str, job: PastJob, timeout: float | None = None) -> Rehearsed:
    """Like `rehearse`, in a forked process that is killed after the time limit."""
    options = registry.options(job.job_name)
    limit = timeout if timeout is not None else job.timeout_seconds or options.timeout_seconds
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_the_child(database_url, job, timeout, writing)
    os.close(writing)
    try:
        text, status, is_killed = _wait(pid, reading, limit + _GRACE_SECONDS)
    finally:
        os.close(reading)
    if is_killed:
        message = f"it ran for longer than its timeout of {limit:g} s, and was killed"
        return Rehearsed(job, End("raised", "drain.workers.errors.JobTimeoutError", message, limit))
    try:
        told: dict[str, Any] = json.loads(text)
    except ValueError:
        message = f"its process {describe_exit(status)}"
        return Rehearsed(job, End("raised", "drain.workers.errors.WorkerDiedError", message))
    if "problem" in told:
        raise DrainError(told["problem"])
    tables = {table: Rows(**rows) for table, rows in told["written"].pop("tables").items()}
    return Rehearsed(job, End(**told["end"]), Written(tables, **told["written"]))


def _be_the_child(database_url: str, job: PastJob, timeout: float | None, writing: int) -> None:
    try:
        random.seed()
        django_connections.forget_inherited()
        try:
            done = rehearse(database_url, job, timeout)
            told: dict[str, Any] = {"end": asdict(done.end), "written": asdict(done.written)}
        except DrainError as error:
            told = {"problem": str(error)}
        text = json.dumps(told).encode()
        while text:
            text = text[os.write(writing, text) :]
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Skip the parent's clean-up handlers.
        os._exit(0)


def _wait(pid: int, reading: int, seconds: float) -> tuple[bytes, int, bool]:
    deadline, text = monotonic() + seconds, b""
    is_killed = False
    while True:
        # Processes started by the job may hold the pipe open, so wait for the child's exit.
        found, status = os.waitpid(pid, os.WNOHANG)
        while select.select([reading], [], [], 0 if found else _LOOK_SECONDS)[0]:
            more = os.read(reading, _BYTES)
            text += more
            if not more:
                sleep(_LOOK_SECONDS)
                break
        if found:
            return text, status, is_killed
        if monotonic() > deadline and not is_killed:
            is_killed = True
            os.kill(pid, signal.SIGKILL)
