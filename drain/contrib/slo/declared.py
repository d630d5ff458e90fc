"""All objectives that the registered jobs and a file of rules declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from drain.jobs import registry
from drain.jobs.objectives import Objective


class Slo(NamedTuple):
    """Objective of one job or queue.

    Attributes:
        kind: Whose objective it is, a job's or a queue's.
        name: Name of the job or the queue.
        objective: Share and time.
        queue: Queue of the jobs; that of the registration for a job.
    """

    kind: Literal["job", "queue"]
    name: str
    objective: Objective
    queue: str

    @property
    def job_name(self) -> str | None:
        """Name of the jobs that count; None for all jobs of the queue."""
        return self.name if self.kind == "job" else None

    def as_json(self) -> dict[str, Any]:
        """As an object of JSON types."""
        return {
            "kind": self.kind,
            "name": self.name,
            "queue": self.queue,
            "slo": str(self.objective),
            "percent": self.objective.percent,
            "seconds": self.objective.seconds,
        }


def declared(of_queues: Mapping[str, Objective]) -> list[Slo]:
    """List all objectives: those of queues and then those of the registered jobs, each by name.

    Args:
        of_queues: Objectives of a file of rules, by the name of the queue.
    """
    queues = [Slo("queue", queue, objective, queue) for queue, objective in sorted(of_queues.items())]
    registered = ((name, registry.options(name)) for name in registry.names())
    jobs = [
        Slo("job", name, Objective.parse(options.slo), options.queue)
        for name, options in registered
        if options.slo is not None
    ]
    return queues + jobs
