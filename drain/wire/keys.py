"""Every Redis key that job-drain reads or writes, by what it holds.

RQ's queues:

    rq:queues               set of the names of all queues, as keys: rq:queue:<queue>
    rq:queue:<queue>        list of RQ job ids; pushed on the right, popped on the left
    rq:queue:<queue>:intermediate
                            list of RQ job ids: plain RQ jobs on their way to a worker, which removes them
    rq:suspended            exists while `rq suspend` holds: no worker pops anything
    rq:failed:<queue>       sorted set of RQ job ids: RQ's registry of failed jobs

RQ's jobs:

    rq:job:<rq id>          hash: all that an RQ worker needs to run one job. A thin delivery has none, until its job
                            has run for a second or is dead
    rq:job:<rq id>:dependents
                            set of RQ job ids: plain RQ jobs that wait for this job to be finished
    rq:job::<rq id>:dependencies
                            set of RQ job ids: the jobs that a plain RQ job waits for (two colons: RQ spells it so)
    rq:results:<rq id>      stream: RQ's results of a job, the last of which says why it has failed
    rq:executions:<rq id>   sorted set: RQ's executions of a job; exists from the moment that RQ begins with the job

RQ's workers:

    rq:workers              set of the keys of all workers
    rq:workers:<queue>      set of the keys of the workers that have registered for the queue
    rq:worker:<name>        hash: all that RQ's tools show of a worker; expires some time after the last heartbeat. The
                            field `drain` of a worker of `drain work` is the namespace whose ids it needs no hash for
    rq:worker:<name>:executions
                            set of <rq id>:drain: the jobs that a worker of `drain work` runs
    rq:pubsub:<name>        channel: commands of RQ's tools for a worker, and questions for the stack of a job
    rq:execution:<rq id>:drain
                            hash: the run of a job, for RQ's tools

job-drain's own:

    drain:<namespace>       string: the installation that feeds the namespace; exists as long as this Redis remembers
                            what was pushed to it
    drain:owners:queues     hash, name of a queue -> installation that feeds it. No namespace holds a colon, so no
                            namespace has this key
    drain:bounds:<namespace>
                            hash, name of a queue -> upper bound of the length of its list: the queues for which rows
                            have lately waited until their lists have room. Expires while none wait
    drain:whole:<namespace>, drain:whole:<namespace>:<queue>
                            strings: RQ's workers that the sets above do not name may listen on all queues, or on this
                            one, so deliveries there are whole. Expires after an hour
    drain:trace:<namespace>:<id>
                            hash, hop -> seconds since 1970: when a job passed the processes; expires after an hour
    drain:ended:<id>        channel: an attempt at a job with a kept result has ended, for those who wait for the result
    drain:progress:<namespace>:<id>
                            string, a JSON object: what the attempt that runs has reported of its progress. Deleted
                            when the attempt has ended; expires half a minute after the last word of its process
    drain:stack:<namespace>:<word>
                            list of one JSON object: where a running job was when somebody asked. Read once, or
                            expires after half a minute
    drain:owners:nothing    never exists: a worker blocks on it while there is no list to wait for
    drain:dependents:<rq id>
                            set of RQ job ids: dependents of a delivery that RQ regards as finished, though its
                            job will be tried again

The Lua scripts spell the same names.
"""

from __future__ import annotations

QUEUES = "rq:queues"
WORKERS = "rq:workers"
SUSPENDED = "rq:suspended"
QUEUE_OWNERS = "drain:owners:queues"
NOTHING = "drain:owners:nothing"

_QUEUE = "rq:queue:"


def queue_key(queue: str) -> str:
    """List of a queue."""
    return _QUEUE + queue


def queue_of(key: str) -> str:
    """Name of the queue that a list belongs to."""
    return key.removeprefix(_QUEUE)


def intermediate_key(queue: str) -> str:
    """Intermediate list of a queue."""
    return f"{_QUEUE}{queue}:intermediate"


def trace_key(namespace: str, job_id: int) -> str:
    """Trace of a job."""
    return f"drain:trace:{namespace}:{job_id}"


def ended_channel(job_id: int) -> str:
    """Channel of the ends of a job; databases that share a Redis share it, so an end is only a reason to look."""
    return f"drain:ended:{job_id}"


def progress_key(namespace: str, job_id: int) -> str:
    """Progress of a running job."""
    return f"drain:progress:{namespace}:{job_id}"


def stack_key(namespace: str, word: str) -> str:
    """Answer to a question for the stack of a job; the word is that of the question."""
    return f"drain:stack:{namespace}:{word}"


def commands_channel(worker_name: str) -> str:
    """Channel of the commands for a worker."""
    return f"rq:pubsub:{worker_name}"


def failed_key(queue: str) -> str:
    """Registry of failed jobs of a queue."""
    return f"rq:failed:{queue}"


def job_key(rq_id: str) -> str:
    """Hash of a job."""
    return f"rq:job:{rq_id}"


def dependents_key(rq_id: str) -> str:
    """Set of the jobs that depend on a job."""
    return f"rq:job:{rq_id}:dependents"


def held_dependents_key(rq_id: str) -> str:
    """Set of the jobs that depend on a job, while RQ must not release them."""
    return f"drain:dependents:{rq_id}"


def results_key(rq_id: str) -> str:
    """Stream of the results of a job."""
    return f"rq:results:{rq_id}"


def execution_key(rq_id: str) -> str:
    """Hash of the run of a tracked job."""
    return f"rq:execution:{rq_id}:drain"


def worker_key(name: str) -> str:
    """Hash of a worker."""
    return f"rq:worker:{name}"


def queue_workers_key(queue: str) -> str:
    """Set of the workers that have registered for a queue."""
    return f"{WORKERS}:{queue}"


def bounds_key(namespace: str) -> str:
    """Upper bounds of the lists of a namespace."""
    return f"drain:bounds:{namespace}"


def whole_key(namespace: str, queue: str | None = None) -> str:
    """Mark of a queue, or of all queues, whose deliveries are whole for a while."""
    return f"drain:whole:{namespace}" if queue is None else f"drain:whole:{namespace}:{queue}"


def namespace_key(namespace: str) -> str:
    """Mark of the database that feeds a namespace."""
    return f"drain:{namespace}"
