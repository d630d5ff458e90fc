"""Options of `drain work`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from drain.service.hysteresis import HealthOptions


class Plain(StrEnum):
    """Plain RQ jobs: each forked, one after another in one process, or refused."""

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
        prefetch: None adapts.
        threads: 1 for the main thread.
        concurrency: Of `async def` jobs in a process.
        max_jobs, max_memory_mb: Per process, which is then replaced.
        max_idle_seconds: Then a process ends.
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
