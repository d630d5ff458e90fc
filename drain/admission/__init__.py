"""Admission: which due rows may leave `staged_jobs`, by the rules of their queues.

    rules            rules of a queue, their texts and contradictions
    options          rules in Python, in a file, on the command line
    declared         rules declared in a file, compared with the database

In the order of a row's path:

    admission        how many rows of each queue may leave, and which, under rules
    held             queues whose rules cannot be applied: no job leaves
    depths           bounds of the Redis lists

    awake            queues with rules and jobs: a bounded number, in turn
    hints            those that just received jobs
    keyed_queue      one queue with rules: a batch from look to commit
    streams          its rows in streams: known, in the order, or blocked
    sources          reads of streams: by key, by key in order, by lane, with aging
    arrivals         new streams: hints at once, and sweeps
    turns            next key, by weight or by place
    selection        rows of one batch, in turns
    allowances       how many more may begin, of the queue and of each key
    running          ids of running jobs, by key
    rates            rates, current and earlier
    buckets          token buckets of a queue and its keys
    ordering         keys held by a dead or earlier job
    retries          due retries, which need a slot and a token too

    uniqueness       one standing job per unique key; the others give way

- Only the leader admits, on one thread. Between its looks jobs can only end, so no count is too low.
- A row is selected in the snapshot of the batch that moves it, and counted after the commit.
- No state is kept only in memory: the next leader reads it from the tables.
- `drain.queues` and `drain queue` write rules and pauses; the leader only writes why it holds a queue.
- An error in the values of a queue's rules holds that queue alone.
"""
