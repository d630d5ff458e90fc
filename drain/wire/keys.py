"""Every Redis key that job-drain reads or writes. The Lua scripts spell the same names.

RQ's queues:

    rq:queues               set: keys of all queues
    rq:queue:<queue>        list of RQ ids, pushed right, popped left
    rq:queue:<queue>:intermediate
                            list: plain RQ jobs on their way to a worker, which removes them
    rq:suspended            exists while `rq suspend` holds
    rq:failed:<queue>       sorted set: RQ's registry of failed jobs

RQ's jobs:

    rq:job:<rq id>          hash: one RQ job. Thin deliveries have none until they run for a second or are dead
    rq:job:<rq id>:dependents
                            set: plain RQ jobs that wait for this one
    rq:job::<rq id>:dependencies
                            set: jobs that a plain RQ job waits for (two colons, as RQ spells it)
    rq:results:<rq id>      stream: RQ's results; the last says why a job failed
    rq:executions:<rq id>   sorted set: exists once RQ begins with the job

RQ's workers:

    rq:workers              set: keys of all workers
    rq:workers:<queue>      set: keys of a queue's workers
    rq:worker:<name>        hash that expires after the last heartbeat; field `drain`: namespace whose ids
                            need no hashes for this `drain work` worker
    rq:worker:<name>:executions
                            set of <rq id>:drain: jobs that a `drain work` worker runs
    rq:pubsub:<name>        channel: RQ's commands for a worker, and stack questions
    rq:execution:<rq id>:drain
                            hash: a job's run, for RQ's tools

job-drain's own:

    drain:<namespace>       string: the installation that feeds it; missing if Redis lost its data
    drain:owners:queues     hash, queue -> installation that feeds it; no collision, since namespaces have no colon
    drain:bounds:<namespace>
                            hash, queue -> maximum list length, where rows wait for room; expires
    drain:whole:<namespace>, drain:whole:<namespace>:<queue>
                            strings: unregistered RQ workers may listen, so deliveries need hashes; expire after an hour
    drain:trace:<namespace>:<id>
                            hash, hop -> seconds since 1970; expires after an hour
    drain:ended:<id>        channel: an attempt at a job with a kept result ended
    drain:progress:<namespace>:<id>
                            string, JSON: progress of the running attempt; expires half a minute after its
                            last write
    drain:stack:<namespace>:<word>
                            list of one JSON object: a running job's stack; read once, or expires after half a minute
    drain:owners:nothing    never exists: workers block on it when there is no list to wait for
    drain:dependents:<rq id>
                            set: dependents of a delivery that RQ considers finished, though the job will be retried
"""

from __future__ import annotations

QUEUES = "rq:queues"
WORKERS = "rq:workers"
SUSPENDED = "rq:suspended"
QUEUE_OWNERS = "drain:owners:queues"
NOTHING = "drain:owners:nothing"

_QUEUE = "rq:queue:"


def queue_key(queue: str) -> str:
    """Return the key of a queue's list."""
    return _QUEUE + queue


def queue_of(key: str) -> str:
    """Return the queue of a list's key."""
    return key.removeprefix(_QUEUE)


def intermediate_key(queue: str) -> str:
    """Return the key of a queue's intermediate list."""
    return f"{_QUEUE}{queue}:intermediate"


def trace_key(namespace: str, job_id: int) -> str:
    """Return the key of a job's trace."""
    return f"drain:trace:{namespace}:{job_id}"


def ended_channel(job_id: int) -> str:
    """Return the channel of a job's ends; databases share it, so a message is only a hint."""
    return f"drain:ended:{job_id}"


def progress_key(namespace: str, job_id: int) -> str:
    """Return the key of a job's progress."""
    return f"drain:progress:{namespace}:{job_id}"


def stack_key(namespace: str, word: str) -> str:
    """Return the key of a stack question's answer."""
    return f"drain:stack:{namespace}:{word}"


def commands_channel(worker_name: str) -> str:
    """Return the channel of a worker's commands."""
    return f"rq:pubsub:{worker_name}"


def failed_key(queue: str) -> str:
    """Return the key of a queue's failed registry."""
    return f"rq:failed:{queue}"


def job_key(rq_id: str) -> str:
    """Return the key of a job's hash."""
    return f"rq:job:{rq_id}"


def dependents_key(rq_id: str) -> str:
    """Return the key of a job's dependents."""
    return f"rq:job:{rq_id}:dependents"


def held_dependents_key(rq_id: str) -> str:
    """Return the key of dependents that RQ must not release."""
    return f"drain:dependents:{rq_id}"


def results_key(rq_id: str) -> str:
    """Return the key of a job's results."""
    return f"rq:results:{rq_id}"


def execution_key(rq_id: str) -> str:
    """Return the key of a tracked job's run."""
    return f"rq:execution:{rq_id}:drain"


def worker_key(name: str) -> str:
    """Return the key of a worker's hash."""
    return f"rq:worker:{name}"


def queue_workers_key(queue: str) -> str:
    """Return the key of a queue's workers."""
    return f"{WORKERS}:{queue}"


def bounds_key(namespace: str) -> str:
    """Return the key of a namespace's list bounds."""
    return f"drain:bounds:{namespace}"


def whole_key(namespace: str, queue: str | None = None) -> str:
    """Return the key that demands hashes in a queue, or in all."""
    return f"drain:whole:{namespace}" if queue is None else f"drain:whole:{namespace}:{queue}"


def namespace_key(namespace: str) -> str:
    """Return the key of a namespace's owner."""
    return f"drain:{namespace}"
