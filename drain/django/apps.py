"""Application of Django: `drain.django` in INSTALLED_APPS, with the label `drain`."""

from __future__ import annotations

from django.apps import AppConfig


class DrainConfig(AppConfig):
    """The application: migrations, commands and the admin of job-drain."""

    name = "drain.django"
    label = "drain"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"
