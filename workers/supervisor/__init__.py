"""The process that `drain work` starts: it forks worker processes, and runs no job.

    supervisor   the loop: starts missing processes, passes stop signals on
    children     the signals of the supervisor, and the beginning of each child
    slot         the slot of one worker process: its successive processes, their pauses and their journal
    reaper       the ends of processes: which ones are replaced, and which ones are killed
    health       state of the supervisor, for systemd and the HTTP port
    callbacks    children that call hooks and commands about the health
    port         the child that serves `/healthz`, `/readyz` and `/metrics`
    collectors   the metrics that it reads from the memory of the worker processes

What always holds: the supervisor starts no thread and opens no connection, since it forks. The jobs of a process that
has died are recovered from its journal by the next process in its slot, or by a child for that purpose alone.
"""
