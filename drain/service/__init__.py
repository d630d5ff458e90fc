"""Interfaces between a long-running process and its monitors.

    http        `/metrics` for Prometheus, `/healthz` and `/readyz` for probes
    versions    versions of job-drain and Python
    hysteresis  grace before a failure is reported, and before it is over
    callbacks   hooks and commands called on changes of health
    systemd     `READY=1`, `STATUS=…` and watchdog for `Type=notify`

A slow, missing or hostile monitor never delays a job.
"""
