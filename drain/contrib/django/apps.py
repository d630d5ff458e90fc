"""Django application."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.conf import settings


class DrainConfig(AppConfig):
    """Migrations, commands and admin of job-drain."""

    name = "drain.contrib.django"
    label = "drain"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the task framework if TASKS is set: Django 6 then registers its check."""
        if getattr(settings, "TASKS", None):
            import_module("drain.contrib.django.framework")
