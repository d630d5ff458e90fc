"""Selections of jobs that wait or run, as conditions that staged rows and rows in flight can both fulfil."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from drain.database.postgres import Connection
from drain.tables.columns import id_array

# Upper bound of the jobs that one transaction of a command changes: locks are held for a moment only.
SLICE = 10_000


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of jobs: all given criteria have to hold.

    Attributes:
        ids: Ids of the jobs; None: any.
        queue: Queue of the jobs; None: any.
        job_name: Name of the jobs; None: any.
        tag: Tag of the jobs; None: any.
        key: Key of the jobs; None: any.
        whole: The selection that this is a slice of; None: this is not a slice.
    """

    ids: tuple[int, ...] | None = None
    queue: str | None = None
    job_name: str | None = None
    tag: str | None = None
    key: str | None = None
    whole: Selection | None = None

    @property
    def condition(self) -> str:
        """Condition on a row; its placeholders are those of `parameters`."""
        return self._condition("ids" if self.ids is not None else None)

    @property
    def whole_condition(self) -> str:
        """Condition on a row of the whole selection, even if this is a slice; as `condition`."""
        if self.whole is None:
            return self.condition
        return self._condition("whole_ids" if self.whole.ids is not None else None)

    def _condition(self, ids: str | None) -> str:
        conditions = [f"{name} = CAST(%({name})s AS text)" for name in self._texts()]
        return " AND ".join([f"id = ANY (CAST(%({ids})s AS bigint[]))", *conditions] if ids else conditions)

    def parameters(self) -> dict[str, Any]:
        """Return the values of the criteria that are given, by the names in the conditions."""
        whole_ids = None if self.whole is None else self.whole.ids
        ids = {"ids": self.ids, "whole_ids": whole_ids}
        return {name: id_array(each) for name, each in ids.items() if each is not None} | self._texts()

    def _texts(self) -> dict[str, str]:
        texts = {"queue": self.queue, "job_name": self.job_name, "tag": self.tag, "key": self.key}
        return {name: text for name, text in texts.items() if text is not None}


def slices(connection: Connection, table: str, selection: Selection) -> Iterator[Selection]:
    """Find the jobs of a selection in one scan of a table, and yield selections of up to `SLICE` of them by their ids.

    The criteria are part of each: a job that has been changed meanwhile no longer fulfils them.
    """
    ids = array("q")
    statement = f"COPY (SELECT id FROM {table} WHERE {selection.condition} ORDER BY id) TO STDOUT"
    with connection.cursor() as cursor, cursor.copy(statement, selection.parameters()) as rows:
        rows.set_types(["int8"])
        ids.extend(job_id for (job_id,) in rows.rows())
    for first in range(0, len(ids), SLICE):
        yield replace(selection, ids=tuple(ids[first : first + SLICE]), whole=selection)
