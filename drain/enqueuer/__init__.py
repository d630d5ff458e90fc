"""Process of `drain run`: one leader moves due rows from `staged_jobs` to Redis.

First the process, then a job's path:

    daemon            process: connects, stands by, leads, waits out outages; takes over Redis names
    leader            advisory locks held while leading and while asleep
    health            health reports and watchdog
    term              one term as leader
    sleeper           sleep until work is due
    transaction_rate  how fast transactions come

    enqueuer     drain: moves a batch while the last one is pushed
    batches      one transaction per batch, smaller ones around a failing row
    batch_size   rows per batch, adapted to the server
    due_rows     next rows: urgent before patient
    lanes        queues with such rows
    crowd        lanes in turn, if there are too many to search
    cursor       start of a lane's scan
    unblocker    jobs whose predecessors have ended
    comparison   edges compared with the ends of jobs
    matcher      waits of jobs that events or deadlines end
    mover        rows to `inflight_jobs`, to Redis alone, or to `dead_jobs`
    forwarding   rows to Redis alone
    deliveries   delivery numbers, watermark, known queues
    pusher       thread that pushes a batch
    thin_queues  queues pushed without hashes

    redelivery         reasons to push a delivered job again
    recall             delivered jobs that wait out a pause
    renumbering        new delivery numbers, and their push
    rq_verdicts        jobs that RQ's workers stopped or could not read
    failing_queues     queues that retry one job at a time
    lost_deliveries    unclaimed numbers in no Redis list
    oldest_deliveries  oldest unclaimed number of each queue

    chores          base class of the periodic work below
    ticker          jobs of schedules
    retention       old days of `finished_jobs`
    housekeeping    partitions, unique keys, expired keys, rows of past jobs, old events, idle queues
    gauges          metrics that only a leader can measure
    objectives      finished and late flows with an SLO
    waits           waiting time of each queue's oldest job
    waiting_jobs    waiting jobs by queue and cause
    extensions      measurements and answers from other packages
    optional_gauge  measurements that may fail
    pacer           spacing of work of unknown duration

- All statements of a leader run on the connection that holds its lock, on one thread. The pusher's thread uses Redis
  only.
- A tracked job is committed to `inflight_jobs` before its push; a forwarded one is pushed before its commit.
- Only `Deliveries` changes the numbers. A number is recorded before the commit that uses it, and pushes follow the
  order of the numbers, so every job up to the watermark has been pushed.
- No state is kept only in memory: wherever a leader is killed, the next one continues from the tables.
"""
