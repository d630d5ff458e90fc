"""Interfaces between a long-running process and its monitors.

    http        `/metrics` for Prometheus, `/healthz` and `/readyz` for probes
    versions    versions of job-drain and Python
    hysteresis  grace before a failure is reported or over
    callbacks   health hooks and commands
    systemd     `READY=1`, `STATUS=…` and watchdog

A slow, missing or hostile monitor never delays a job.
"""
