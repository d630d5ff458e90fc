"""Autoscaling: how many workers a queue needs, from arrivals, run time and backlog.

    load     facts about queues, from bounded reads of the tables
    wanted   the number of workers for a load, and why; pure
    leader   extension of the leader: measures every few seconds
    answers  `/scale/QUEUE` on the HTTP port of `drain run`
    forecast the command `drain forecast`: when a backlog ends

Stateless, so every `drain run` can answer, even a standby. The number follows the load; the autoscaler smooths it.
"""
