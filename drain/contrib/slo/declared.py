"""Declared objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from drain.jobs import registry
from drain.jobs.objectives import Objective


class Slo(NamedTuple):
    """Objective of a job, with its registered queue, or of a queue."""

    kind: Literal["job", "queue"]
    name: str
    objective: Objective
    queue: str

    @property
    def job_name(self) -> str | None:
        """Name of the jobs that count; None for all."""
        return self.name if self.kind == "job" else None

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {
            "kind": self.kind,
            "name": self.name,
            "queue": self.queue,
            "slo": str(self.objective),
            "percent": self.objective.percent,
            "seconds": self.objective.seconds,
        }


def declared(of_queues: Mapping[str, Objective]) -> list[Slo]:
    """List objectives of queues, then of registered jobs, by name."""
    queues = [Slo("queue", queue, objective, queue) for queue, objective in sorted(of_queues.items())]
    registered = ((name, registry.options(name)) for name in registry.names())
    jobs = [
        Slo("job", name, Objective.parse(options.slo), options.queue)
        for name, options in registered
        if options.slo is not None
    ]
    return queues + jobs
