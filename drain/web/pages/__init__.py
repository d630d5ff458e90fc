"""Pages of `drain web`: each module has its routes as `ROUTES`.

overview  all queues at a glance
queue     one queue: rules, keys, who is next, pause and limits
login     the form that takes the token
"""

from __future__ import annotations

from starlette.routing import Route

from drain.web.pages import login, overview, queue

ROUTES: list[Route] = [*overview.ROUTES, *queue.ROUTES, *login.ROUTES]
