"""The four tables in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

import drain
from drain.contrib.django import columns, environment
from drain.contrib.django.columns import Column
from drain.contrib.django.connections import driver
from drain.contrib.django.models import DeadJob, FinishedJob, InflightJob, StagedJob
from drain.errors import ConfigError
from drain.formatting import count
from drain.jobs.values import LARGEST_ID
from drain.tables import dead

# Counting 100 million rows takes half a minute.
_MOST_ROWS = 10_000


class BoundedPaginator(Paginator):
    """Pages of a huge table's first rows."""

    @cached_property
    def count(self) -> int:
        """Count the rows, up to a bound."""
        return int(self.object_list[:_MOST_ROWS].count())


class JobAdmin(admin.ModelAdmin):
    """Base of the four lists."""

    shown: tuple[str | Column, ...] = ("id", "job_name", "queue", "priority", "tag", "staged_at")
    ordering = ("-id",)
    # Only shows the search field.
    search_fields = ("id",)
    search_help_text = "An id, or the whole name of a job, a queue, a tag or a key."
    show_full_result_count = False
    paginator = BoundedPaginator

    def get_list_display(self, _request: HttpRequest) -> list[str | Column]:
        """Return sanitized columns."""
        return [columns.column(self.model, each) if isinstance(each, str) else each for each in self.shown]

    def get_list_display_links(self, _request: HttpRequest, list_display: Any) -> Any:
        """Link id and job name."""
        return list_display[:2]

    def get_fields(self, _request: HttpRequest, _job: Any = None) -> list[str | Column]:
        """Return all fields, sanitized."""
        return [columns.whole(field) for field in self.opts.fields]

    get_readonly_fields = get_fields

    def has_add_permission(self, _request: HttpRequest, *_of: Any, **_named: Any) -> bool:
        """Refuse."""
        return False

    def has_change_permission(self, _request: HttpRequest, *_of: Any, **_named: Any) -> bool:
        """Refuse."""
        return False

    def has_delete_permission(self, _request: HttpRequest, *_of: Any, **_named: Any) -> bool:
        """Refuse."""
        return False

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may cancel."""
        return self._may(request, "cancel")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may retry."""
        return self._may(request, "retry")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read the tasks' database."""
        return super().get_queryset(request).using(self.alias)

    def get_search_results(
        self, _request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find jobs by id or exact name."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.isascii() and term.isdecimal():
            return queryset.filter(id=min(int(term), LARGEST_ID)), False
        return queryset.filter(Q(job_name=term) | Q(queue=term) | Q(tag=term) | Q(key=term)), False

    @property
    def alias(self) -> str:
        """Alias of the tasks' database; the default if there are several."""
        try:
            return environment.only_database()
        except ConfigError:
            return "default"

    @admin.action(permissions=["cancel"], description="Cancel selected jobs")
    def cancel(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Cancel jobs."""
        jobs = list(queryset)
        with transaction.atomic(using=self.alias):
            done = drain.cancel(driver(self.alias), [job.pk for job in jobs])
        self._report(request, jobs, {*done.waiting, *done.running}, "cancelled")

    @admin.action(permissions=["retry"], description="Retry selected jobs")
    def retry(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Stage dead jobs again."""
        jobs = list(queryset)
        ids = [job.pk for job in jobs]
        with transaction.atomic(using=self.alias):
            connection = driver(self.alias)
            dead.revive(connection, dead.Selection(tuple(ids)))
            left = {
                row[0] for row in connection.execute("SELECT id FROM dead_jobs WHERE id = ANY (%s)", [ids])
            }
        self._report(request, jobs, set(ids) - left, "staged again")

    def _may(self, request: HttpRequest, verb: str) -> bool:
        return bool(request.user.has_perm(f"{self.opts.app_label}.{verb}_{self.opts.model_name}"))

    def _report(self, request: HttpRequest, jobs: list[Any], done: set[int], verb: str) -> None:
        for job in jobs:
            if job.pk in done:
                self.log_change(request, job, verb)
        level = messages.SUCCESS if done else messages.WARNING
        rest = f"; {count(len(jobs) - len(done), 'other')} had moved on" if len(done) < len(jobs) else ""
        self.message_user(request, f"{count(len(done), 'job')} {verb}{rest}", level)


@admin.register(StagedJob)
class StagedJobAdmin(JobAdmin):
    """Staged jobs."""

    shown = (*JobAdmin.shown, columns.due)
    actions = ("cancel",)


@admin.register(InflightJob)
class InflightJobAdmin(JobAdmin):
    """Jobs in flight."""

    shown = (*JobAdmin.shown, columns.state, "attempts", "claimed_by", "next_run_at", columns.error)
    actions = ("cancel",)


@admin.register(FinishedJob)
class FinishedJobAdmin(JobAdmin):
    """Finished jobs."""

    shown = (*JobAdmin.shown, "attempts", "finished_at")


@admin.register(DeadJob)
class DeadJobAdmin(JobAdmin):
    """Dead jobs."""

    shown = (*JobAdmin.shown, "attempts", "died_at", "reason", columns.error)
    actions = ("retry",)
