"""Admission: which due rows may leave `staged_jobs`, by the rules of their queues.

    rules            rules of a queue: their texts, and what contradicts what
    options          rules as users write them: in Python, in a file, on the command line
    declared         rules declared in a file, and how the database differs

In the order of a row's path:

    admission        how many rows of each queue may leave, and which, if the queue has rules
    held             queues whose rules cannot be followed: nothing leaves
    depths           how many ids the Redis lists may hold

    awake            queues with rules and jobs: a bounded number, in turn
    hints            which of them jobs were just staged in
    keyed_queue      one queue with rules: the steps of a batch, from look to commit
    streams          its rows in streams: known, ready to go on, or blocked
    sources          how streams are read: by key, by key in order, by lane, by lane with aging
    arrivals         how streams are found: a hint at once, and sweeps
    turns            whose turn it is: by weight or by place
    selection        the rows of one batch, taken in turns
    allowances       how many more may begin, of the queue and of each key
    running          ids of running jobs, by key
    rates            by its rates, and earlier ones that still count
    buckets          token buckets of a queue and its keys
    ordering         dead and revived jobs of an ordered key
    retries          due retries, which need a slot and a token too

    uniqueness       of the jobs with one unique key one stands, and the others give way

- Only the leader admits, on one thread. Between its looks jobs can only end, so no count is too low.
- A row is selected in the snapshot of the batch that moves it, and counted after the commit.
- Nothing in memory is needed: the next leader reads it from the tables.
- `drain.queues` and `drain queue` write rules and pauses; the leader only writes why it holds a queue.
- An error in the values of a queue's rules holds that queue, and no other.
"""
