"""The process of `drain run`: one leader moves due rows out of `staged_jobs` and pushes them to Redis.

In the order of its start, and then of a job's path:

    daemon     the process: connects, stands by, leads terms, waits out outages; takes over Redis names
    leader     the lock of the leading session, and the lock under which it sleeps
    health     reports of the process, and its watchdog
    term       one term as leader: drain, redelivery, chores, gauges, sleep
    sleeper    sleeps until a job is staged, a scheduled row is due, or other work is

    enqueuer     the drain: moves the next batch while the last one is pushed
    batches      one transaction per batch; smaller ones while some row makes them fail
    batch_size   rows per batch, adapted to what the server manages
    due_rows     the next rows: urgent before patient
    lanes        the queues with such rows
    crowd        lanes in turn, when there are more than a search may find
    cursor       where a scan of a lane begins
    mover        rows to `inflight_jobs`, to Redis alone, or to `dead_jobs`
    forwarding   rows that go to Redis alone, as many as one call carries
    deliveries   delivery numbers, the watermark, the known queues
    pusher       the thread that pushes a batch
    thin_queues  queues whose jobs are pushed without hashes

    redelivery         why a delivered job is pushed again
    recall             delivered jobs that wait out a pause
    renumbering        new delivery numbers for these jobs, and their push
    rq_verdicts        jobs that RQ's own workers stopped or could not read
    failing_queues     queues whose retries are pushed one at a time
    lost_deliveries    numbers that are in no Redis list and were not claimed
    oldest_deliveries  the oldest unclaimed number of each queue

    chores          base of the following: work that repeats after a pause
    ticker          stages the jobs of schedules
    retention       drops old days of `finished_jobs`
    housekeeping    partitions, unique keys, expired keys, past queues
    gauges          metrics that only a leader can measure
    waits           waiting time of the oldest job in each queue
    waiting_jobs    waiting jobs of each queue, by cause
    extensions      measurements and answers of other packages
    optional_gauge  a measurement that the leader can do without
    pacer           spaces work of unknown duration

- All statements of a leader run on the connection that holds its lock, on one thread. The pusher's thread uses Redis
  only.
- A tracked job is committed to `inflight_jobs` before it is pushed; a forwarded one is pushed before it is committed.
- Only `Deliveries` changes the numbers. A number is recorded before the commit that uses it, and pushes follow the
  order of the numbers, so every job up to the watermark has been pushed.
- Nothing in memory is needed: wherever a leader is killed, the next one continues from the tables.
"""
