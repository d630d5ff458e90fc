"""`manage.py drain_work`: the workers."""

from __future__ import annotations

from drain.commands.work import work
from drain.contrib.django.management.program import Program


class Command(Program):
    """The workers."""

    help = "Run tasks and jobs: `drain work`, with the settings of Django."
    name = "drain_work"
    command = work
