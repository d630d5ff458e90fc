"""Pages of `drain web`: each module has its routes as `ROUTES`.

overview      all queues at a glance
queue         one queue: numbers, pauses, rules, keys, who is next
queue_writes  pause, resume and rules of a queue
job           one job: what it waits for, its way, its errors; retry, discard and cancel
dead          dead jobs in groups; retry at a rate, discard
search        jobs of all tables by a word
login         the form that takes the token
"""

from __future__ import annotations

from starlette.routing import Route

from drain.web.pages import dead, job, login, overview, queue, queue_writes, search

ROUTES: list[Route] = [
    *overview.ROUTES,
    *queue.ROUTES,
    *queue_writes.ROUTES,
    *job.ROUTES,
    *dead.ROUTES,
    *search.ROUTES,
    *login.ROUTES,
]
