"""Benchmarks, on the embedded servers or Debian's: `make bench` writes RESULTS.md, `make bench-check` compares.

    __main__       `make bench`: part after part, those that are not done
    parts          each part, and where its figures go
    progress       which parts are done for this commit, and how long they took
    sizes          how much is measured
    check          `make bench-check`: rounds until each ratio has a verdict
    check_figures  the ratios of one round
    verdict        holds, fell, or cannot be told
    goals          what the figures are to reach
    servers        both kinds of servers
    machine        where something was measured, in a line
    figures        formats of figures, and the parts of RESULTS.md
    peers/         the same work by other queues
    overheads      staging with and without spans, and hooks that nobody has registered
    prometheus     a Prometheus of its own with the alarms of deploy/prometheus, for tests too
    quiet_alarms   a soak without faults, in which no alarm may fire; quiet_jobs are its jobs
    flows          jobs that wait for others, for `dependencies`; dependent_jobs is their job
    crowd          jobs in every state by the million, hostile ones among them; for tests too
    alone          command line of a module that measures one section

All other modules measure one section of RESULTS.md each.
"""
