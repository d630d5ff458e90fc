"""Settings of the shop. DRAIN_DATABASE_URL names the database, and DRAIN_REDIS_URL the Redis of the workers."""

import os
from importlib.util import find_spec
from typing import Any

from psycopg.conninfo import conninfo_to_dict

_database: dict[str, Any] = conninfo_to_dict(
    os.environ.get("DRAIN_DATABASE_URL", "postgresql://localhost/shop")
)

SECRET_KEY = "of an example"  # noqa: S105
DEBUG = True
USE_TZ = True
ROOT_URLCONF = "project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database.pop("dbname", ""),
        "USER": _database.pop("user", ""),
        "PASSWORD": _database.pop("password", ""),
        "HOST": _database.pop("host", ""),
        "PORT": _database.pop("port", ""),
        "OPTIONS": _database,
    }
}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    # Before Django 6, tasks are a package of their own.
    *([] if find_spec("django.tasks") else ["django_tasks"]),
    "drain.contrib.django",
    "shop",
]
MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
TASKS = {
    "default": {
        "BACKEND": "drain.contrib.django.DrainBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 5, "timeout_seconds": 60},
    }
}
