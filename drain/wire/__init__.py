"""RQ's keys and formats. Nobody outside of this package knows them.

    rq:queues              set of the names of all queues, as keys: rq:queue:<queue>
    rq:queue:<queue>       list of RQ job ids; pushed on the right, popped on the left
    rq:queue:<queue>:intermediate
                           list of RQ job ids: plain RQ jobs on their way to a worker, which takes them out
    rq:job:<rq id>         hash: what an RQ worker needs to run one job
    rq:executions:<rq id>  sorted set: RQ's executions of a job; there from the moment that RQ begins with it
    rq:suspended           there while `rq suspend` holds: no worker takes anything
    rq:worker:<name>       hash: what RQ's tools show of a worker; expires when nothing is heard of it
    rq:workers:<queue>     set of the keys of the workers that have registered for the queue
    rq:worker:<name>:executions
                            set of <rq id>:drain: what a worker runs; rq:execution:<rq id>:drain is the hash about it
    drain:<namespace>      ours: installation that feeds the namespace; there for as long as this Redis remembers
                           what was pushed to it
    drain:owners:queues    ours: hash, name of a queue -> installation that feeds it

In the tracked mode the RQ job calls one fixed function with the id of the row and the installation of its
database, so no argument of a job and no name that could be called ever reaches Redis: the name of the job that RQ's
tools show behind `drain.rq.` leads to the same function, as every name there does. Its RQ id is
`<namespace>-<id>-<delivery>`: each delivery is an RQ job of its own, so what RQ still does to an earlier one
(expiry, registries, clean-up) cannot touch a later one. In forward mode the job is the user's own function and
arguments, pickled as RQ itself would, under `<namespace>-<id>-forward`.

    push       the enqueuer's side: jobs are written and appended
    owners     which database feeds a namespace or a queue
    earlier    deliveries that did not come back, as RQ sees them, and what depends on them
    take       the worker's side: ids are taken, many at a time, and what is done is cleared
    workers    live workers of each queue; those that have died are taken out
    strangers  ids that are none of ours: judged by their bytes, and left alone, refused or dropped
"""

from drain.wire.consumer import WAIT_SECONDS, Consumer, Taken
from drain.wire.earlier import Fate, Gone, hold_dependents
from drain.wire.producer import (
    BYTES,
    ENTRY_POINT,
    FAILED_TTL_SECONDS,
    JOBS_PER_CALL,
    NAMED,
    Delivery,
    Producer,
    connect,
    delivery_number,
    describe,
    forwarded,
    tracked,
    tracked_id,
)
from drain.wire.strangers import read_call
from drain.wire.workers import forget_worker

__all__ = [
    "BYTES",
    "ENTRY_POINT",
    "FAILED_TTL_SECONDS",
    "JOBS_PER_CALL",
    "NAMED",
    "WAIT_SECONDS",
    "Consumer",
    "Delivery",
    "Fate",
    "Gone",
    "Producer",
    "Taken",
    "connect",
    "delivery_number",
    "describe",
    "forget_worker",
    "forwarded",
    "hold_dependents",
    "read_call",
    "tracked",
    "tracked_id",
]
