"""RQ's keys and formats, and ours beside them. No other package knows them.

Each module, in the order in which a job passes:

    keys                   every Redis key, by what it holds
    connection             connections to Redis: every wait has an upper bound, errors are one line
    scripts                Lua scripts of `lua/`, which run inside of Redis
    ids                    RQ ids of deliveries: made and read
    calls                  calls of tracked jobs: pickled by template, and read without unpickling
    jobs                   RQ jobs as they are pushed, tracked and forwarded
    namespace_guard        databases that feed a namespace or a queue
    queues                 queues as the drain and the audit see them: lists, lengths, workers
    thin                   ids without hashes, for queues on which only `drain work` listens
    producer               the enqueuer's side: jobs are written and appended to their lists
    consumer               the worker's side: all that a worker process asks of Redis
    sources                lists that a worker pops from, and those that it skips for now
    blocking_pop           the command that blocks until there is an id
    pop                    ids are popped, many at a time
    moves                  ids go back to their list, or through RQ's intermediate list
    foreign_jobs           ids that are none of our tracked ones: moved, refused or dropped
    ended                  hashes of deliveries whose jobs have ended: deleted
    ends                   ends of a job as workers tell of them, for who waits for its result
    superseded_deliveries  deliveries that did not come back: RQ's verdict, and the RQ jobs that depend on them
    timeline               when a job passed which process
    progress               progress of running jobs, as they report it
    workers                workers in RQ's data: counted, shown to RQ's tools, and removed once they have died
    live_workers           workers as they have registered: a page of them, and the processes of one host
    stacks                 stacks of running jobs, asked of their worker process and answered

What always holds: in the tracked mode the RQ job calls one fixed function with the id of the row and the installation
of its database, so no argument of a job and no function of it ever reaches Redis: the name of the job that RQ's tools
show behind `drain.rq.` leads to the same function, as every name there does. Its RQ id is
`<namespace>-<id>-<delivery>`: each delivery is an RQ job of its own, so what RQ still does to an earlier one (expiry,
registries, clean-up) cannot touch a later one. In forward mode the job is the user's own function and arguments,
pickled as RQ itself would, under `<namespace>-<id>-forward`.

An id is in a list only after its hash has been written, unless it is that of a thin delivery, which never has one: the
last part of its id begins with a zero, until the successor of a dead worker process gives the id back. Nothing that is
read from Redis is unpickled. No command waits for longer than its timeout, and none is repeated unasked.
"""

from drain.wire.blocking_pop import WAIT_SECONDS
from drain.wire.calls import ENTRY_POINT, NAMED, read_call
from drain.wire.connection import BYTES, connect, describe
from drain.wire.consumer import Consumer
from drain.wire.ids import AwaitedId, PoppedId, delivery_number, is_thin, thin_id, tracked_id
from drain.wire.jobs import FAILED_TTL_SECONDS, Delivery, forwarded, tracked
from drain.wire.keys import job_key
from drain.wire.producer import JOBS_PER_CALL, Producer
from drain.wire.progress import ProgressBoard
from drain.wire.queues import QueueReader
from drain.wire.superseded_deliveries import ReplacedDelivery, RQVerdict, hold_dependents
from drain.wire.thin import NEEDS_NO_HASH, write_hash
from drain.wire.timeline import Traces
from drain.wire.workers import forget_worker

__all__ = [
    "BYTES",
    "ENTRY_POINT",
    "FAILED_TTL_SECONDS",
    "JOBS_PER_CALL",
    "NAMED",
    "NEEDS_NO_HASH",
    "WAIT_SECONDS",
    "AwaitedId",
    "Consumer",
    "Delivery",
    "PoppedId",
    "Producer",
    "ProgressBoard",
    "QueueReader",
    "RQVerdict",
    "ReplacedDelivery",
    "Traces",
    "connect",
    "delivery_number",
    "describe",
    "forget_worker",
    "forwarded",
    "hold_dependents",
    "is_thin",
    "job_key",
    "read_call",
    "thin_id",
    "tracked",
    "tracked_id",
    "write_hash",
]
