"""RQ's keys and formats, and our own. No other package knows them.

    keys                   every Redis key
    connection             clients with bounded waits
    scripts                Lua scripts in `lua/`
    ids                    RQ ids of deliveries
    calls                  calls of tracked jobs
    jobs                   RQ jobs, tracked and forwarded
    namespace_guard        owners of namespaces and queues
    queues                 lists, lengths and workers
    thin                   ids without hashes
    producer               the enqueuer's side
    consumer               the worker's side
    sources                lists that a worker pops from
    blocking_pop           the blocking wait for an id
    pop                    popping ids in batches
    moves                  giving ids back
    foreign_jobs           other ids: moved, refused or dropped
    ended                  clean-up of ended deliveries
    ends                   notifications of a job's end
    superseded_deliveries  RQ's verdicts on lost deliveries
    timeline               traces of jobs
    progress               progress of running jobs
    workers                workers in RQ's data
    live_workers           registered workers, by page or host
    stacks                 stacks of running jobs

A tracked RQ job calls one fixed function with the row's id and installation: no argument or function of a job reaches
Redis. Each delivery is a separate RQ job. Forward mode pickles the user's own call, as RQ would.

Ids are listed only after their hashes are written; thin deliveries have none. Nothing read from Redis is unpickled.
Commands time out, and none is retried automatically.
"""

from drain.wire.blocking_pop import WAIT_SECONDS
from drain.wire.calls import ENTRY_POINT, NAMED, read_call
from drain.wire.connection import BYTES, connect, describe
from drain.wire.consumer import Consumer
from drain.wire.ids import AwaitedId, PoppedId, delivery_number, is_thin, notifies_end, thin_id, tracked_id
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
    "notifies_end",
    "read_call",
    "thin_id",
    "tracked",
    "tracked_id",
    "write_hash",
]
