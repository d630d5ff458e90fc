"""Options of `drain work`, as the command line gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from drain.service.hysteresis import HealthOptions


class Plain(StrEnum):
    """Mode of plain RQ jobs: run in a process forked for each, run one after the other in one process, or refused."""

    FORK = "fork"
    INLINE = "inline"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOptions:
    """Options of plain RQ jobs, each as the option of `rq worker` of this name. None is RQ's default.

    Attributes:
        mode: Process in which plain jobs run, if any.
        name: Name of RQ's worker; None for a unique one.
        serializer: Dotted path, or `json` or `pickle`.
        job_class: Dotted path.
        exception_handlers: Dotted paths, the first called first.
        disable_default_exception_handler: Only `exception_handlers` are called for failed jobs.
        with_scheduler: Enqueue scheduled jobs when they are due.
        worker_ttl: Seconds after which RQ's tools regard a silent worker as dead.
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

    @property
    def refuses(self) -> bool:
        """True if no plain job runs."""
        return self.mode is Plain.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """Options of one `drain work`.

    Attributes:
        queues: Names of the queues.
        rotates: The queues take turns; otherwise the most urgent is named first.
        processes: Number of worker processes.
        prefetch: Number of jobs that a process fetches at a time; None: as many as it is about to run.
        threads: Other jobs that a process runs at once; 1: one after the other, in the main thread.
        concurrency: `async def` jobs that a process runs at once.
        grace_seconds: Grace period of jobs that run when the worker gets the signal to stop.
        max_jobs: Jobs after which a process is replaced; None for no limit.
        max_memory_mb: Resident megabytes above which a process is replaced; None for no limit.
        max_idle_seconds: Seconds without a job after which a process ends; None for no limit.
        burst: End when the queues are empty.
        metrics_host, metrics_port: Address of the HTTP server for metrics and probes; port 0 for none.
        trace: Note when jobs pass.
        health: When the health of `drain work` is reported, and to whom.
        plain: Options of plain RQ jobs.
    """

    queues: Sequence[str]
    rotates: bool = False
    processes: int = 1
    prefetch: int | None = None
    threads: int = 1
    concurrency: int = 100
    grace_seconds: float = 30.0
    max_jobs: int | None = None
    max_memory_mb: int | None = None
    max_idle_seconds: float | None = None
    burst: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    trace: bool = False
    health: HealthOptions = field(default_factory=HealthOptions)
    plain: PlainOptions = field(default_factory=PlainOptions)
