"""Pages of `drain web`, with their `ROUTES`.

overview      all queues
queue         one queue
queue_writes  pause, resume and rules
rule_effects  preview of changed rules
undo          earlier rules, and schedules paused or resumed, from a notice
job           one job: timeline, errors, retry, discard, cancel
flow          flows: a list, and the graph of one
dead          dead jobs in groups
dead_action   progress of a bulk retry or discard
search        jobs of all tables
cron          schedules
workers       processes and running jobs
stack         stack of a hanging job
bulk          runs that stage jobs by the million
statistics    the page of `drain stats`
login         the form that takes the token
design        all components
"""

from __future__ import annotations

from starlette.routing import Route

from drain.contrib.web.pages import (
    bulk,
    cron,
    dead,
    dead_action,
    design,
    flow,
    job,
    login,
    overview,
    queue,
    queue_writes,
    search,
    stack,
    statistics,
    undo,
    workers,
)

ROUTES: list[Route] = [
    *overview.ROUTES,
    *queue.ROUTES,
    *queue_writes.ROUTES,
    *undo.ROUTES,
    *job.ROUTES,
    *flow.ROUTES,
    *dead.ROUTES,
    *dead_action.ROUTES,
    *search.ROUTES,
    *cron.ROUTES,
    *workers.ROUTES,
    *stack.ROUTES,
    *bulk.ROUTES,
    *statistics.ROUTES,
    *login.ROUTES,
    *design.ROUTES,
]
