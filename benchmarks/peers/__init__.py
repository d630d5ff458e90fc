"""The same work by job-drain, and by the other systems that a Python programmer might choose.

    job_counter   shared memory in which each process counts what it has done
    work          the work itself, the same code for all
    apps/         each peer's own way to define jobs, to fill its queue and to commit a single job
    fill          program in a peer's environment: jobs in bulk
    produce       program in a peer's environment: single jobs at a steady rate
    peers         how each of them is run, and why so
    environments  a virtual environment for each, of pinned versions; those on Node.js share one
    bench         one database, one Redis, and the processes of a peer, for one measurement
    processes     their processor time and their memory
    rate          jobs a second
    delay         from commit to start
    disturbances  what other sessions do meanwhile
    killed        what becomes of a job whose worker is killed around its commit
    killed_busy   what becomes of all that a killed worker had in hand
    stepped       program in a peer's environment: jobs of steps
    stalled       their steps while processes are stopped and killed
    step_cost     what a step costs
    canvas        chains and fan-ins of jobs
    results       all figures as plain data, and the JSON file
    run           the rounds
    report, plots the figures for people

`job_counter`, `processes`, `work`, `stepped`, `apps`, `fill` and `produce` run in the environment of each peer: they
import nothing else of ours.
"""
