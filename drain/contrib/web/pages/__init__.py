"""Pages of `drain web`: each module has its routes as `ROUTES`.

overview      all queues at a glance
queue         one queue: numbers, pauses, rules, keys, who is next
queue_writes  pause, resume and rules of a queue
job           one job: what it waits for, its way, its errors; retry, discard and cancel
dead          dead jobs in groups; retry at a rate, discard
search        jobs of all tables by a word
cron          schedules, and one of them: paused, resumed, run now
workers       processes by host, and what they run, longest first
stack         where a job that hangs is, asked of its process
bulk          runs that stage jobs by the million
statistics    the page of `drain stats`
login         the form that takes the token
"""

from __future__ import annotations

from starlette.routing import Route

from drain.contrib.web.pages import (
    bulk,
    cron,
    dead,
    job,
    login,
    overview,
    queue,
    queue_writes,
    search,
    stack,
    statistics,
    workers,
)

ROUTES: list[Route] = [
    *overview.ROUTES,
    *queue.ROUTES,
    *queue_writes.ROUTES,
    *job.ROUTES,
    *dead.ROUTES,
    *search.ROUTES,
    *cron.ROUTES,
    *workers.ROUTES,
    *stack.ROUTES,
    *bulk.ROUTES,
    *statistics.ROUTES,
    *login.ROUTES,
]
