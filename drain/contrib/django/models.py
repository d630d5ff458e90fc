"""The four tables as read-only models."""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from drain.errors import DrainError
from drain.formatting import visible


class Job(models.Model):
    """Columns of all four tables."""

    id = models.BigIntegerField(primary_key=True)
    job_name = models.TextField("job")
    job_args = models.JSONField("arguments")
    job_kwargs = models.JSONField("keyword arguments")
    queue = models.TextField()
    priority = models.IntegerField(help_text="Lower runs first.")
    scheduled_at = models.DateTimeField()
    tag = models.TextField(null=True)
    key = models.TextField(null=True)
    context = models.JSONField(null=True)
    staged_at = models.DateTimeField()
    history = models.JSONField("earlier deaths", null=True)

    class Meta:
        """Abstract."""

        abstract = True

    def __str__(self) -> str:
        return f"{visible(self.job_name)} ({self.pk})"

    def save(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse: only job-drain moves rows."""
        raise DrainError(
            "rows of job-drain are read only here: use drain.stage, drain.cancel and `drain dead retry`"
        )

    def delete(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse."""
        self.save()


class StagedJob(Job):
    """A staged job; a blocked one is scheduled for the year 9999, and may have an earliest start."""

    starts_at = models.DateTimeField("earliest start", null=True)
    expires_at = models.DateTimeField(null=True)
    max_attempts = models.IntegerField(null=True)
    timeout_seconds = models.IntegerField(null=True)

    class Meta:
        """Options."""

        managed = False
        db_table = "staged_jobs"
        default_permissions = ("view",)
        permissions = (("cancel_stagedjob", "Can cancel staged jobs"),)
        verbose_name = "staged job"


class InflightJob(Job):
    """A delivered, running or retrying job."""

    expires_at = models.DateTimeField(null=True)
    max_attempts = models.IntegerField(null=True)
    timeout_seconds = models.IntegerField(null=True)
    attempts = models.IntegerField()
    moved_at = models.DateTimeField()
    claimed_at = models.DateTimeField(null=True)
    claimed_by = models.TextField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    next_run_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    last_error = models.JSONField(null=True)

    class Meta:
        """Options."""

        managed = False
        db_table = "inflight_jobs"
        default_permissions = ("view",)
        permissions = (("cancel_inflightjob", "Can cancel jobs in flight"),)
        verbose_name = "job in flight"
        verbose_name_plural = "jobs in flight"


class FinishedJob(Job):
    """A finished job."""

    attempts = models.IntegerField()
    moved_at = models.DateTimeField()
    claimed_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    finished_by = models.TextField(null=True)
    last_error = models.JSONField(null=True)
    result = models.JSONField(null=True)
    superseded_by = models.BigIntegerField(null=True)

    class Meta:
        """Options."""

        managed = False
        db_table = "finished_jobs"
        default_permissions = ("view",)
        verbose_name = "finished job"


class DeadJob(Job):
    """A dead job."""

    expires_at = models.DateTimeField(null=True)
    max_attempts = models.IntegerField(null=True)
    timeout_seconds = models.IntegerField(null=True)
    attempts = models.IntegerField()
    last_error = models.JSONField(null=True)
    died_at = models.DateTimeField()
    reason = models.TextField()
    explanation = models.TextField()

    class Meta:
        """Options."""

        managed = False
        db_table = "dead_jobs"
        default_permissions = ("view",)
        permissions = (("retry_deadjob", "Can retry dead jobs"),)
        verbose_name = "dead job"
