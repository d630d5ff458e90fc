"""Autoscaling: the number of workers that a queue needs now, from arrivals, run time and backlog.

    load     facts about queues, read from the tables by bounded questions
    wanted   the number of workers for a load, and the reasons; no database is asked
    leader   extension of the leader: measures every few seconds
    answers  `/scale/QUEUE` on the HTTP port of `drain run`
    forecast the command `drain forecast`: when a backlog ends

What always holds: nothing is remembered that the tables do not have, so every `drain run` can answer, a standby too.
The number jumps with the load: the autoscaler smooths it.
"""
