"""Telemetry: jobs in the tools that watch an application. Nothing here is imported unless the application asks for it.

    opentelemetry   `DrainInstrumentor`: spans of the calls that stage, and of each attempt
    sentry          `DrainIntegration`: exceptions of attempts, and their transactions
    attempts        what both must know of an attempt that has raised
    forks           processes that run one job and are gone: what waits to be sent is sent before

Both use the hooks of `drain.hooks`; what travels from the one that stages to the worker is in the `context` of the job.

What always holds: a failure to tell something never fails a job.
"""
