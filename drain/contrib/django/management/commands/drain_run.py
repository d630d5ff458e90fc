"""`manage.py drain_run`: the enqueuer."""

from __future__ import annotations

from drain.commands.run import run
from drain.contrib.django.management.program import Program


class Command(Program):
    """The enqueuer."""

    help = "Drain committed jobs into Redis: `drain run`, with the settings of Django."
    name = "drain_run"
    command = run
