"""Answers of a long-running process to the programs that watch it.

    http        `/metrics` for Prometheus, `/healthz` and `/readyz` for probes
    versions    versions of the running program
    hysteresis  a failure is reported after a grace, and is over after a time without one
    callbacks   hooks and commands that are called for a change of health
    systemd     `READY=1`, `STATUS=…` and the watchdog, for a unit of `Type=notify`

What always holds: a watcher that is slow, absent or hostile never delays a job.
"""
