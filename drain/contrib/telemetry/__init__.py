"""Telemetry of jobs for OpenTelemetry and Sentry, imported on request.

    opentelemetry   `DrainInstrumentor`: spans of staging calls and attempts
    sentry          `DrainIntegration`: exceptions and transactions of attempts
    attempts        trace context, and meanings of exceptions
    forks           flushing in processes forked for one job

Both use `drain.hooks`; traces travel in the job's `context`. A telemetry failure never fails a job.
"""
