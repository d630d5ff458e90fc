"""Extensions: nothing in the core imports them, and the core runs without this folder.

    alembic     job-drain's tables among the migrations of an application that has Alembic
    check       one look at the whole system, for a program that watches it
    dev         `drain dev`: all programs in one terminal; `drain demo` and `drain drill`
    django      Django: backend of tasks, `drain.contrib.django.transaction()`, programs of manage.py, admin
    events      events of jobs, as they happen
    plain       RQ's own jobs in `drain work`, run by RQ's own worker
    rehearsal   today's code on jobs that have ended, always rolled back
    scaling     the number of workers that a queue needs now; when its backlog ends
    slo         service level objectives: rules for Prometheus, and how many jobs have met them lately
    telemetry   jobs in OpenTelemetry and in Sentry, for applications that ask for it
    testing     jobs in tests, within the test's own transaction; a plugin of pytest
    web         `drain web`: the page, for a browser, or mounted in an application

They plug in by entry points, as other packages may: `drain.commands` and `drain.options` (see
`drain.terminal.lazy_commands`), `drain.leader` (see `drain.enqueuer.extensions`), and `drain.plain_jobs` (see
`drain.workers.process.plain_jobs`).

Extensions do not import each other, but `rehearsal` lends connections as `testing` does, and reads archived jobs
through `drain.pipeline.lake`.
"""
