"""`manage.py drain`."""

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
        # By name: lower layers must not import it.
        self.command = import_module("drain.__main__").main

    def main(self, words: list[str], **more: object) -> None:
        """Let `drain dev` use Django's database, and Redis if configured."""
        names = ("database_url", "redis_url")
        given = {name: os.environ[VARIABLES[name]] for name in names if os.environ.get(VARIABLES[name])}
        if words[:1] == ["dev"]:
            # Its subprocesses must find the project too.
            paths = [os.path.abspath(sys.path[0]), os.environ.get("PYTHONPATH")]  # noqa: PTH100
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        super().main(words, default_map={self.name: {"dev": given}}, **more)
