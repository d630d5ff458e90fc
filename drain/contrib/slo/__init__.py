"""Service level objectives: the share of jobs that start within a time after they are due.

    declared    objectives of registered jobs and of a rules file
    prometheus  recording rules and alerts
    compliance  recent compliance, from the tables
    report      lines for users
    status      lines in `drain status`
    command     `drain slo`

Objectives do not affect jobs. Prometheus computes burn rates from the histogram `drain_work_wait_seconds`, with a
bucket per possible objective; the tables cover the last hour and a bounded number of jobs.
"""
