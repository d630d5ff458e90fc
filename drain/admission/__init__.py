"""Admission: which of the due rows may leave `staged_jobs` now, as the rules of their queues say.

    rules            the rules of a queue: their texts, and what contradicts what
    options          rules as people write them, in Python, in a file and on the command line
    declared         rules that a file declares, and how they differ from those of the database

In the order in which a row passes:

    admission        how many rows of each queue may leave now, and which, if the queue has rules
    held             queues whose rules cannot be followed: nothing of them leaves
    depths           how many ids the lists in Redis may hold

    awake            queues with rules that have jobs: a bounded number of them, in turn
    hints            in which of them jobs have just been staged
    keyed_queue      one queue that has rules: the steps of a batch, from the look to the commit
    streams          its rows, divided into streams: which are known, which may go on, which are blocked
    sources          how streams are read: by key, by key in order, by lane, by lane with aging
    arrivals         how streams come to be known: a hint at once, and sweeps
    turns            whose turn it is: by weight, or by the places of the jobs
    selection        the rows of one batch, taken in turns
    allowances       how many more may begin, of the queue and of each key
    running          ids of the running jobs, by key
    rates            by its rates, and by earlier ones that still count
    buckets          token buckets of a queue and of its keys
    ordering         dead and revived jobs of a key whose jobs run in order
    retries          due retries, which need a slot and a token, too

    uniqueness       jobs that share a unique key: one of them stands, the others give way to it

What always holds:

- The leader alone admits, on one thread. Between two of its looks jobs can only end: a count is never too low.
- A row is selected in the snapshot of the batch that moves it, and counted after the commit.
- Nothing that is remembered here is needed: the next leader reads it from the tables.
- `drain.queues` and `drain queue` write to `queues` and `queue_pauses`, and the leader follows. It writes one column,
  the reason why it holds a queue.
- An error that the values of a queue's rules cause holds that queue, and no other.
"""
