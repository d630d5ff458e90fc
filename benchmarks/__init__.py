"""Benchmarks on embedded or Debian servers: `make bench` writes RESULTS.md, `make bench-check` compares ratios.

    __main__       `make bench`: runs the parts that are not done
    parts          the parts, and where their figures go
    progress       which parts are done for this commit, and how long each took
    sizes          how much each part measures
    check          `make bench-check`: rounds until each ratio has a verdict
    check_figures  the ratios of one round
    verdict        holds, fell, or undecided
    goals          the goals, and the figures measured for them
    servers        both kinds of servers
    machine        one line about the machine, the servers and the packages
    figures        number formats, and the parts of RESULTS.md
    peers/         the same work on other queues
    overheads      staging with and without spans, and unused hooks
    prometheus     a separate Prometheus with the alarms of deploy/prometheus, also used by tests
    quiet_alarms   a fault-free soak that must not raise an alarm; its jobs are in quiet_jobs
    flows          jobs that wait for others, for `dependencies`; their job is in dependent_jobs
    crowd          millions of jobs in every state, some with hostile texts; also used by tests
    alone          command line of a module that measures one section

All other modules measure one section of RESULTS.md each.
"""
