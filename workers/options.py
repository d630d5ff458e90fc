"""How a worker is to work, as the command line says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Plain(StrEnum):
    """What becomes of plain RQ jobs: run in a process forked for each, run one after the other in one, or refused."""

    FORK = "fork"
    INLINE = "inline"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOptions:
    """How plain RQ jobs are run: what `rq worker` is told by the options of these names. None is RQ's default.

    Attributes:
        mode: In which process, if any.
        name: Name of RQ's worker; None: one that no other has.
        serializer: Dotted path, or `json` or `pickle`.
        job_class: Dotted path.
        exception_handlers: Dotted paths, the first called first.
        disable_default_exception_handler: Leave failed jobs to those alone.
        with_scheduler: Enqueue scheduled jobs when they are due.
        worker_ttl: Seconds after which RQ's tools take a silent worker for dead.
        results_ttl: Seconds for which results are kept, where the job does not say.
        maintenance_interval: Seconds between two clean-ups of RQ's registries.
        job_monitoring_interval: Seconds between two heartbeats of a running job.
    """

    mode: Plain = Plain.FORK
    name: str | None = None
    serializer: str | None = None
    job_class: str | None = None
    exception_handlers: Sequence[str] = ()
    disable_default_exception_handler: bool = False
    with_scheduler: bool = False
    worker_ttl: int | None = None
    results_ttl: int | None = None
    maintenance_interval: int | None = None
    job_monitoring_interval: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """What `drain work` has been told.

    Attributes:
        queues: Names of the queues, the first of which comes first.
        processes: How many work at the same time.
        prefetch: How many jobs each takes at a time; None: as many as it is about to run.
        concurrency: How many `async def` jobs each runs at once.
        grace_seconds: What runs when the worker is told to stop has so long to end.
        max_jobs: After so many a process is replaced; None for never.
        max_memory_mb: As soon as it has more megabytes resident, likewise.
        max_idle_seconds: A process ends that has had no job for so long; None for never.
        burst: End when the queues are empty.
        metrics_host, metrics_port: Where to serve HTTP for machines; port 0 for nowhere.
        plain: How plain RQ jobs are run.
    """

    queues: Sequence[str]
    processes: int = 1
    prefetch: int | None = None
    concurrency: int = 100
    grace_seconds: float = 30.0
    max_jobs: int | None = None
    max_memory_mb: int | None = None
    max_idle_seconds: float | None = None
    burst: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    plain: PlainOptions = field(default_factory=PlainOptions)
