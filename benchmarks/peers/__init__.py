"""The same work on job-drain and on the other systems that a Python programmer might choose.

    job_counter   shared memory in which each process counts its jobs
    work          the work itself, the same code for all
    apps/         how each peer defines jobs, fills its queue and commits a single job
    fill          program in a peer's environment: jobs in bulk
    produce       program in a peer's environment: single jobs at a steady rate
    peers         how each peer is run, and why
    environments  a virtual environment of pinned versions for each peer; those on Node.js share one
    bench         one database, one Redis, and the processes of a peer, for one measurement
    processes     processor time and memory of these processes
    rate          jobs a second
    delay         from commit to start
    disturbances  other sessions alongside a queue
    killed        outcome of a job whose worker is killed around its commit
    killed_busy   outcome of all jobs in the hands of a killed worker
    stepped       program in a peer's environment: jobs of steps
    stalled       steps while processes are stopped and killed
    step_cost     cost of a step
    canvas        chains and fan-ins of jobs
    results       all figures as plain data, and the JSON file
    run           the rounds
    report, plots the figures as Markdown and pictures

`job_counter`, `processes`, `work`, `stepped`, `apps`, `fill` and `produce` run in the environment of each peer and
import none of our other modules.
"""
