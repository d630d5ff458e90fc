"""Options of `drain work`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from drain.service.hysteresis import HealthOptions


class Plain(StrEnum):
    """Mode of plain RQ jobs: forked each, one after another in one process, or refused."""

    FORK = "fork"
    INLINE = "inline"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOptions:
    """Options of plain RQ jobs, named as in `rq worker`; None is RQ's default.

    Attributes:
        serializer: Dotted path, `json` or `pickle`.
        exception_handlers: Dotted paths, in order.
        worker_ttl, results_ttl, maintenance_interval, job_monitoring_interval: Seconds.
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
        rotates: Queues take turns; otherwise in order of urgency.
        prefetch: Jobs a process fetches at a time; None adapts.
        threads: Jobs a process runs at once; 1 for the main thread.
        concurrency: `async def` jobs a process runs at once.
        grace_seconds: For running jobs after a stop signal.
        max_jobs: Per process, which is then replaced.
        max_memory_mb: Resident; beyond it a process is replaced.
        max_idle_seconds: Then a process ends.
        burst: End when the queues are empty.
        metrics_port: 0 for none.
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
