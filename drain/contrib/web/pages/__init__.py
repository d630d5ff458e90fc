"""Pages of `drain web`: each module lists its routes in `ROUTES`.

overview      all queues
queue         one queue: numbers, pauses, rules, keys, next up
queue_writes  pause, resume and rules of a queue
job           one job: timeline, errors, arguments; retry, discard, cancel
dead          dead jobs in groups; retry at a rate, discard
search        jobs of all tables by a word
cron          schedules: pause, resume, run now
workers       processes by host, and running jobs
stack         stack of a hanging job, requested from its process
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
