"""`manage.py drain`: the whole command line of job-drain."""

from __future__ import annotations

from importlib import import_module

from drain.django.management.program import Program


class Command(Program):
    """The command line."""

    help = "All commands of `drain`, with the settings of Django: `manage.py drain status`."
    name = "drain"

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)
        # Imported by name, as it puts together what no module below may know.
        self.command = import_module("drain.__main__").main
