"""Answers of a long-running process to the programs that watch it.

    http      `/metrics` for Prometheus, `/healthz` and `/readyz` for probes
    versions  versions of the running program
    systemd   `READY=1`, `STATUS=…` and the watchdog, for a unit of `Type=notify`

What always holds: a watcher that is slow, absent or hostile never delays a job.
"""
