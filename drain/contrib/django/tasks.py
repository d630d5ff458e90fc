"""Job module for workers: `DRAIN_JOBS=drain.contrib.django.tasks` sets Django up and registers its tasks.

Imports each application's `tasks`. List other modules too: `DRAIN_JOBS=drain.contrib.django.tasks,shop.mail`.
"""

from __future__ import annotations

import sys

import django
from django.apps import apps
from django.db import connections
from django.utils.module_loading import autodiscover_modules

from drain.contrib.django.task import register_all_of

if not apps.ready:
    django.setup()
autodiscover_modules("tasks")
for _config in apps.get_app_configs():
    if (_module := sys.modules.get(f"{_config.name}.tasks")) is not None:
        register_all_of(_module)
# Workers fork from here; processes must not share a connection.
connections.close_all()
