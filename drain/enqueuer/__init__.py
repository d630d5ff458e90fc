"""The enqueuer's process, `drain run`: one leader moves due rows out of `staged_jobs` and feeds them to Redis.

In the order in which it begins, and then in the order in which a job passes:

    daemon     the process: connects, stands by, leads one term after the other, waits out outages
    leader     the lock that one session holds, and the lock under which it sleeps
    take_over  frees the names in Redis that an installation owned which is gone
    health     what the process reports of itself, and the guard against a standstill
    term       one term as leader: drain, redelivery, chores, gauges, sleep
    sleeper    sleep until a job is staged, a scheduled row is due, or other work is

    enqueuer     the drain: the next batch is moved while the last one is pushed
    batches      one transaction a batch; smaller ones while some row makes them fail
    batch_size   how many rows a batch may have, by what the server has managed before
    due_rows     which rows are next: urgent ones, then patient ones
    lanes        the queues that have such rows
    crowd        lanes in turn, where there are more than a search may find
    cursor       where a scan of a lane begins
    mover        the row's way out: to `inflight_jobs`, to Redis alone, or to `dead_jobs`
    forwarding   rows that go to Redis alone, as many as one call carries
    deliveries   delivery numbers, the watermark, the known queues
    pusher       the thread that pushes a batch
    thin_queues  the queues whose jobs are pushed without hashes

    redelivery         the reasons for which a delivered job is pushed again
    recall             delivered jobs to which a pause applies, which wait until it is over
    renumbering        new delivery numbers for these jobs, and their push
    rq_verdicts        jobs that RQ's own workers have stopped or could not read
    failing_queues     queues whose retries are pushed one at a time
    lost_deliveries    numbers that are in no list of Redis and were not claimed
    oldest_deliveries  the oldest unclaimed number of each queue

    chores          the one shape of those that follow: a piece of work after a pause
    ticker          jobs of schedules are staged at their ticks
    retention       days of `finished_jobs` that are no longer kept
    housekeeping    the small ones: partitions, unique keys of jobs that wait again, expired keys, past queues
    gauges          metrics that only a leader can measure, of tags and of what the tables cost too
    waits           the waiting time of the oldest job in each queue
    waiting_jobs    the number of waiting jobs of each queue, by cause
    extensions      what other packages measure and answer in the leader's process
    optional_gauge  a measurement that the leader can do without
    pacer           spaces work whose duration is not known in advance

What always holds:

- All statements of a leader run on the one connection that holds its lock, and on one thread. The thread of the
  pusher uses Redis alone.
- A tracked job is committed to `inflight_jobs` before it is pushed; a forwarded one is pushed before it is committed.
- `Deliveries` alone changes the numbers. A number is recorded before the commit that uses it, and pushes are done in
  the order of the numbers, so each job at or below the watermark has been pushed.
- Nothing that the process remembers is needed: the next leader goes on from the tables, wherever this one was killed.
"""
