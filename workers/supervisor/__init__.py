"""The process that `drain work` starts: it forks worker processes, and runs no job.

    supervisor   the loop: starts missing processes, passes on stop signals
    children     signals of the supervisor, and the beginning of each child
    slot         one place for a worker process
    reaper       replaces ended processes, and kills overdue ones
    health       state, for systemd and the HTTP port
    callbacks    children that call health hooks and commands
    port         the child that serves `/healthz`, `/readyz` and `/metrics`
    collectors   metrics read from the worker processes' memory

As it forks, the supervisor starts no threads and opens no connections. Jobs of a dead process are recovered from its
journal by the next in its slot, or by a child for that purpose.
"""
