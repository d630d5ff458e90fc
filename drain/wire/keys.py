"""Every Redis key that job-drain reads or writes. The Lua scripts spell the same names.

RQ's queues:

    rq:queues               set: keys of all queues
    rq:queue:<queue>        list of RQ ids, pushed right, popped left
    rq:queue:<queue>:intermediate
                            list: plain RQ jobs being popped
    rq:suspended            exists while `rq suspend` is in effect
    rq:failed:<queue>       sorted set: registry of failed jobs

RQ's jobs:

    rq:job:<rq id>          hash: one job; for thin deliveries, only after a second's run or if dead
    rq:job:<rq id>:dependents
                            set: RQ jobs that wait for this one
    rq:job::<rq id>:dependencies
                            set: jobs that an RQ job waits for (two colons, as in RQ)
    rq:results:<rq id>      stream: results; the last says why a job failed
    rq:executions:<rq id>   sorted set: exists once RQ begins the job

RQ's workers:

    rq:workers              set: keys of all workers
    rq:workers:<queue>      set: keys of a queue's workers
    rq:worker:<name>        hash, expires after the last heartbeat; field `drain`: namespace it needs no hashes for
    rq:worker:<name>:executions
                            set of <rq id>:drain: jobs that a `drain work` worker runs
    rq:pubsub:<name>        channel: RQ's commands, and stack questions
    rq:execution:<rq id>:drain
                            hash: a job's run

job-drain's own:

    drain:<namespace>       string: its installation; missing if Redis lost its data
    drain:owners:queues     hash, queue -> its installation; namespaces have no colon, so no collision
    drain:bounds:<namespace>
                            hash, queue -> maximum list length, while rows wait for room
    drain:whole:<namespace>, drain:whole:<namespace>:<queue>
                            strings, for an hour: unregistered RQ workers may need hashes
    drain:trace:<namespace>:<id>
                            hash, hop -> seconds since 1970, for an hour
    drain:ended:<id>        channel: an attempt with a kept result ended
    drain:progress:<namespace>:<id>
                            string, JSON, for half a minute: the running attempt's progress
    drain:stack:<namespace>:<word>
                            list of one JSON object, for half a minute: a running job's stack
    drain:owners:nothing    never exists: workers without a list to wait for block on it
    drain:dependents:<rq id>
                            set: dependents of a delivery that RQ considers finished, but whose job is retried
"""

from __future__ import annotations

QUEUES = "rq:queues"
WORKERS = "rq:workers"
SUSPENDED = "rq:suspended"
QUEUE_OWNERS = "drain:owners:queues"
NOTHING = "drain:owners:nothing"

_QUEUE = "rq:queue:"


def queue_key(queue: str) -> str:
    """Return a queue's list key."""
    return _QUEUE + queue


def queue_of(key: str) -> str:
    """Return the queue of a list key."""
    return key.removeprefix(_QUEUE)


def intermediate_key(queue: str) -> str:
    """Return a queue's intermediate list key."""
    return f"{_QUEUE}{queue}:intermediate"


def trace_key(namespace: str, job_id: int) -> str:
    """Return a job's trace key."""
    return f"drain:trace:{namespace}:{job_id}"


def ended_channel(job_id: int) -> str:
    """Return a job's end channel; databases share it, so messages are hints."""
    return f"drain:ended:{job_id}"


def progress_key(namespace: str, job_id: int) -> str:
    """Return a job's progress key."""
    return f"drain:progress:{namespace}:{job_id}"


def stack_key(namespace: str, word: str) -> str:
    """Return the key of a stack question's answer."""
    return f"drain:stack:{namespace}:{word}"


def commands_channel(worker_name: str) -> str:
    """Return a worker's command channel."""
    return f"rq:pubsub:{worker_name}"


def failed_key(queue: str) -> str:
    """Return a queue's failed-registry key."""
    return f"rq:failed:{queue}"


def job_key(rq_id: str) -> str:
    """Return a job's hash key."""
    return f"rq:job:{rq_id}"


def dependents_key(rq_id: str) -> str:
    """Return a job's dependents key."""
    return f"rq:job:{rq_id}:dependents"


def held_dependents_key(rq_id: str) -> str:
    """Return the key of dependents that RQ must not release."""
    return f"drain:dependents:{rq_id}"


def results_key(rq_id: str) -> str:
    """Return a job's results key."""
    return f"rq:results:{rq_id}"


def execution_key(rq_id: str) -> str:
    """Return a tracked job's run key."""
    return f"rq:execution:{rq_id}:drain"


def worker_key(name: str) -> str:
    """Return a worker's hash key."""
    return f"rq:worker:{name}"


def queue_workers_key(queue: str) -> str:
    """Return a queue's workers key."""
    return f"{WORKERS}:{queue}"


def bounds_key(namespace: str) -> str:
    """Return a namespace's list bounds key."""
    return f"drain:bounds:{namespace}"


def whole_key(namespace: str, queue: str | None = None) -> str:
    """Return the key that requires hashes in a queue, or all."""
    return f"drain:whole:{namespace}" if queue is None else f"drain:whole:{namespace}:{queue}"


def namespace_key(namespace: str) -> str:
    """Return a namespace's owner key."""
    return f"drain:{namespace}"
