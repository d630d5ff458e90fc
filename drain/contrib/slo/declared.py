"""Declared objectives."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from drain.admission.declared import Objectives
from drain.jobs import registry
from drain.jobs.objectives import Objective


class Slo(NamedTuple):
    """Objective of a job, with its registered queue, of a queue, or of the flows with a name."""

    kind: Literal["job", "queue", "flow"]
    name: str
    objective: Objective
    queue: str | None

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


def declared(of_file: Objectives | None = None) -> list[Slo]:
    """List objectives of queues, then of flows, then of registered jobs, by name."""
    of_queues, of_flows = of_file or Objectives({}, {})
    queues = [Slo("queue", queue, objective, queue) for queue, objective in sorted(of_queues.items())]
    flows = [Slo("flow", flow, objective, None) for flow, objective in sorted(of_flows.items())]
    registered = ((name, registry.options(name)) for name in registry.names())
    jobs = [
        Slo("job", name, Objective.parse(options.slo), options.queue)
        for name, options in registered
        if options.slo is not None
    ]
    return queues + flows + jobs
