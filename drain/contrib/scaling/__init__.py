"""Autoscaling: how many workers a queue needs, from arrivals, run time and backlog.

    load     facts about queues, from bounded reads
    wanted   number of workers for a load, and why; pure
    leader   extension of the leader: measures every few seconds
    answers  `/scale/QUEUE` on the HTTP port of `drain run`
    forecast `drain forecast`: when a backlog clears

Stateless, so even a standby `drain run` can answer. The number follows the load; the autoscaler smooths it.
"""
