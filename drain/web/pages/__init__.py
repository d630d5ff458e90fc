"""Pages of `drain web`: each module has its routes as `ROUTES`.

overview      all queues at a glance
queue         one queue: numbers, pauses, rules, keys, who is next
queue_writes  pause, resume and rules of a queue
cron          schedules, and one of them: paused, resumed, run now
workers       processes by host, and what they run, longest first
stack         where a job that hangs is, asked of its process
bulk          runs that stage jobs by the million
statistics    the page of `drain stats`
login         the form that takes the token
"""

from __future__ import annotations

from starlette.routing import Route

from drain.web.pages import bulk, cron, login, overview, queue, queue_writes, stack, statistics, workers

ROUTES: list[Route] = [
    *overview.ROUTES,
    *queue.ROUTES,
    *queue_writes.ROUTES,
    *cron.ROUTES,
    *workers.ROUTES,
    *stack.ROUTES,
    *bulk.ROUTES,
    *statistics.ROUTES,
    *login.ROUTES,
]
