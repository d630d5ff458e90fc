"""Service level objectives: which share of the jobs starts within a time after they are due.

    declared    all objectives that the registered jobs and a file of rules declare
    prometheus  recording rules and alerts for Prometheus
    compliance  how many jobs have met an objective lately, from the tables
    report      lines about objectives, for people
    status      lines about objectives in `drain status`
    command     `drain slo`

What always holds: an objective changes nothing about a job. Prometheus works out burn rates from the workers' histogram
`drain_work_wait_seconds`, which has a bucket at each time that an objective can name; the tables answer only for the
last hour, and for a bounded number of jobs.
"""
