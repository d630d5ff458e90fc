"""Pages of `drain web`: each module has its routes as `ROUTES`.

overview      all queues at a glance
queue         one queue: numbers, pauses, rules, keys, who is next
queue_writes  pause, resume and rules of a queue
login         the form that takes the token
"""

from __future__ import annotations

from starlette.routing import Route

from drain.web.pages import login, overview, queue, queue_writes

ROUTES: list[Route] = [*overview.ROUTES, *queue.ROUTES, *queue_writes.ROUTES, *login.ROUTES]
