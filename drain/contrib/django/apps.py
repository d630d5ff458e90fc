"""Application of Django: `drain.contrib.django` in INSTALLED_APPS, with the label `drain`."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.conf import settings


class DrainConfig(AppConfig):
    """The application: migrations, commands and the admin of job-drain."""

    name = "drain.contrib.django"
    label = "drain"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the framework of tasks where TASKS is set: Django 6 registers its system check on that import."""
        if getattr(settings, "TASKS", None):
            import_module("drain.contrib.django.framework")
