"""`manage.py drain`: the whole command line of job-drain."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from drain.config import VARIABLES
from drain.contrib.django.management.program import Program


class Command(Program):
    """The command line."""

    help = "All commands of `drain`, with the settings of Django: `manage.py drain status`."
    name = "drain"

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)
        # Imported by name, as it puts together what no module below may know.
        self.command = import_module("drain.__main__").main

    def main(self, words: list[str], **more: object) -> None:
        """Let `drain dev` use the database of Django, and its Redis if the settings name one."""
        names = ("database_url", "redis_url")
        given = {name: os.environ[VARIABLES[name]] for name in names if os.environ.get(VARIABLES[name])}
        if words[:1] == ["dev"]:
            # Its programs find the project where manage.py does.
            paths = [os.path.abspath(sys.path[0]), os.environ.get("PYTHONPATH")]  # noqa: PTH100
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        super().main(words, default_map={self.name: {"dev": given}}, **more)
