"""Telemetry: jobs in OpenTelemetry and Sentry, imported only on request.

    opentelemetry   `DrainInstrumentor`: spans of staging calls and attempts
    sentry          `DrainIntegration`: exceptions and transactions of attempts
    attempts        what both need to know of a failed attempt
    forks           flushing in processes forked for one job

Both use `drain.hooks`; traces travel in the job's `context`. A telemetry failure never fails a job.
"""
