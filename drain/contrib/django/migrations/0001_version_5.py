"""Tables, and models for the admin."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from drain.contrib.django.installation import install


def _model(name: str, table: str, *fields: tuple[str, Any], **options: Any) -> migrations.CreateModel:
    common = [
        ("id", models.BigIntegerField(primary_key=True, serialize=False)),
        ("job_name", models.TextField(verbose_name="job")),
        ("job_args", models.JSONField(verbose_name="arguments")),
        ("job_kwargs", models.JSONField(verbose_name="keyword arguments")),
        ("queue", models.TextField()),
        ("priority", models.IntegerField(help_text="Lower runs first.")),
        ("scheduled_at", models.DateTimeField()),
        ("tag", models.TextField(null=True)),
        ("key", models.TextField(null=True)),
        ("context", models.JSONField(null=True)),
        ("staged_at", models.DateTimeField()),
        ("history", models.JSONField(null=True, verbose_name="earlier deaths")),
    ]
    return migrations.CreateModel(
        name=name,
        fields=[*common, *fields],
        options={"db_table": table, "managed": False, "default_permissions": ("view",), **options},
    )


class Migration(migrations.Migration):
    """The first migration."""

    initial = True
    # The tables are installed on a separate connection.
    atomic = False
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(install, migrations.RunPython.noop),
        _model(
            "StagedJob",
            "staged_jobs",
            ("expires_at", models.DateTimeField(null=True)),
            ("max_attempts", models.IntegerField(null=True)),
            ("timeout_seconds", models.IntegerField(null=True)),
            permissions=(("cancel_stagedjob", "Can cancel staged jobs"),),
            verbose_name="staged job",
        ),
        _model(
            "InflightJob",
            "inflight_jobs",
            ("expires_at", models.DateTimeField(null=True)),
            ("max_attempts", models.IntegerField(null=True)),
            ("timeout_seconds", models.IntegerField(null=True)),
            ("attempts", models.IntegerField()),
            ("moved_at", models.DateTimeField()),
            ("claimed_at", models.DateTimeField(null=True)),
            ("claimed_by", models.TextField(null=True)),
            ("lease_expires_at", models.DateTimeField(null=True)),
            ("next_run_at", models.DateTimeField(null=True)),
            ("failed_at", models.DateTimeField(null=True)),
            ("last_error", models.JSONField(null=True)),
            permissions=(("cancel_inflightjob", "Can cancel jobs in flight"),),
            verbose_name="job in flight",
            verbose_name_plural="jobs in flight",
        ),
        _model(
            "FinishedJob",
            "finished_jobs",
            ("attempts", models.IntegerField()),
            ("moved_at", models.DateTimeField()),
            ("claimed_at", models.DateTimeField()),
            ("finished_at", models.DateTimeField()),
            ("finished_by", models.TextField(null=True)),
            ("last_error", models.JSONField(null=True)),
            ("result", models.JSONField(null=True)),
            ("superseded_by", models.BigIntegerField(null=True)),
            verbose_name="finished job",
        ),
        _model(
            "DeadJob",
            "dead_jobs",
            ("expires_at", models.DateTimeField(null=True)),
            ("max_attempts", models.IntegerField(null=True)),
            ("timeout_seconds", models.IntegerField(null=True)),
            ("attempts", models.IntegerField()),
            ("last_error", models.JSONField(null=True)),
            ("died_at", models.DateTimeField()),
            ("reason", models.TextField()),
            ("explanation", models.TextField()),
            permissions=(("retry_deadjob", "Can retry dead jobs"),),
            verbose_name="dead job",
        ),
    ]
