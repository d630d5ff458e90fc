"""Jobs that write through Django's ORM. Django is configured for DRAIN_DATABASE_URL, as an application does it."""

import os
from typing import Any

from asgiref.sync import sync_to_async
from django.db import models

import drain.contrib.django
from drain import job
from tests.blocks import use_django_at

MODULE = "tests.jobs_of_django"

if "DRAIN_DATABASE_URL" in os.environ:
    use_django_at(os.environ["DRAIN_DATABASE_URL"], OPTIONS={"application_name": "django"})


def model() -> Any:
    """The class of an effect; made late, since a model asks for the settings."""
    from django.apps import apps

    if "effect" in apps.all_models["tests"]:
        return apps.all_models["tests"]["effect"]

    class Effect(models.Model):  # type: ignore[misc]  # Django has no types
        label = models.TextField()
        worker = models.IntegerField(default=os.getpid)

        class Meta:
            app_label = "tests"
            managed = False
            db_table = "effects"

    return Effect


@job(max_attempts=1)
def write(label: str) -> None:
    """Write by the ORM, with no transaction of the job's."""
    model().objects.create(label=label)


@job(max_attempts=1)
async def write_async(label: str) -> None:
    await model().objects.acreate(label=label)


@job(max_attempts=1)
async def finish_async(label: str) -> None:
    await sync_to_async(finish.function)(label)


@job(max_attempts=5, lease_seconds=0.5)
def finish(label: str) -> None:
    with drain.contrib.django.transaction():
        model().objects.create(label=label)


@job(max_attempts=1, commit="grouped")
def finish_grouped(label: str) -> None:
    with drain.contrib.django.transaction():
        model().objects.create(label=label)


@job(max_attempts=1)
def fork_and_finish(label: str) -> None:
    with drain.contrib.django.transaction():
        model().objects.create(label=f"{label} before the fork")
        if not (child := os.fork()):
            raise SystemExit
        os.waitpid(child, 0)
        model().objects.create(label=f"{label} after the fork")
