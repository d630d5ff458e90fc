"""Settings of the project of the tests; the database is the one that SITE_DATABASE_URL names."""

import json
import os
from importlib.util import find_spec
from typing import Any

from psycopg.conninfo import conninfo_to_dict

_given: dict[str, Any] = conninfo_to_dict(
    os.environ.get("SITE_DATABASE_URL", "postgresql://localhost/nowhere")
)

SECRET_KEY = "of the tests"
USE_TZ = os.environ.get("SITE_USE_TZ") != "no"
TIME_ZONE = "America/New_York"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.django_project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _given.pop("dbname", ""),
        "USER": _given.pop("user", ""),
        "PASSWORD": _given.pop("password", ""),
        "HOST": _given.pop("host", ""),
        "PORT": _given.pop("port", ""),
        "OPTIONS": _given,
    },
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *([] if find_spec("django.tasks") else ["django_tasks"]),
    "drain.contrib.django",
    "tests.django_project.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
TASKS = {
    "default": {
        "BACKEND": "drain.contrib.django.DrainBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"retry_base_seconds": 0.05, "retry_cap_seconds": 0.05, "max_attempts": 2},
    },
    **json.loads(os.environ.get("SITE_TASKS", "{}")),
}
globals().update(json.loads(os.environ.get("SITE_SETTINGS", "{}")))
