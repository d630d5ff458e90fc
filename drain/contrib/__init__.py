"""Extensions: the core neither imports nor needs them.

    alembic     job-drain's tables among an application's Alembic migrations
    check       one look at the whole system, for monitoring
    dev         `drain dev`, `drain demo` and `drain drill`
    django      task backend, `drain.contrib.django.transaction()`, manage.py commands, admin
    events      job events as they happen
    plain       RQ's own jobs in `drain work`, run by RQ's own worker
    rehearsal   today's code on ended jobs, always rolled back
    scaling     workers that a queue needs; when its backlog ends
    slo         service level objectives: Prometheus rules, and recent compliance
    telemetry   jobs in OpenTelemetry and Sentry
    testing     jobs in tests, within the test's own transaction; a pytest plugin
    web         `drain web`: the web interface, standalone or mounted

They plug in by entry points, as other packages may: `drain.commands` and `drain.options` (see
`drain.terminal.lazy_commands`), `drain.leader` (see `drain.enqueuer.extensions`), and `drain.plain_jobs` (see
`drain.workers.process.plain_jobs`).

Extensions do not import each other, but `rehearsal` lends connections as `testing` does, and reads archived jobs
through `drain.pipeline.lake`.
"""
