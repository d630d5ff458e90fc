"""Selections of waiting or running jobs, as SQL conditions."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from drain.database.postgres import Connection
from drain.tables.columns import IS_BLOCKED, MARKER, id_array
from drain.tables.flow_pauses import GATE
from drain.tables.steps import UNDO

# Jobs per transaction, to keep locks short.
SLICE = 10_000
# No job of a flow needs to be in the queue of its end.
NO_MARKER = f"job_name NOT IN ('{MARKER}', '{GATE}')"

# It has the queue and the tag of the job that it undoes if that is cancelled.
NO_IDLE_UNDO = f"NOT (job_name = '{UNDO}' AND {IS_BLOCKED})"


@dataclass(frozen=True, slots=True)
class Selection:
    """Jobs that match all criteria; `queue` leaves the ends of flows. A slice has a `whole`.

    Attributes:
        leaves_undos: Without the jobs that undo others if these die, unless given by id or name.
    """

    ids: tuple[int, ...] | None = None
    queue: str | None = None
    job_name: str | None = None
    tag: str | None = None
    key: str | None = None
    whole: Selection | None = None
    leaves_undos: bool = False

    @property
    def condition(self) -> str:
        """Condition on a row, with placeholders."""
        return self._condition("ids" if self.ids is not None else None)

    @property
    def whole_condition(self) -> str:
        """Condition of the whole selection, even for a slice."""
        if self.whole is None:
            return self.condition
        return self._condition("whole_ids" if self.whole.ids is not None else None)

    def _condition(self, ids: str | None) -> str:
        conditions = [f"{name} = CAST(%({name})s AS text)" for name in self._texts()]
        conditions += [NO_MARKER] if self.queue is not None else []
        whole = self.whole or self
        if self.leaves_undos and whole.ids is None and self.job_name is None:
            conditions.append(NO_IDLE_UNDO)
        return " AND ".join([f"id = ANY (CAST(%({ids})s AS bigint[]))", *conditions] if ids else conditions)

    def parameters(self) -> dict[str, Any]:
        """Return the criteria by placeholder."""
        whole_ids = None if self.whole is None else self.whole.ids
        ids = {"ids": self.ids, "whole_ids": whole_ids}
        return {name: id_array(each) for name, each in ids.items() if each is not None} | self._texts()

    def _texts(self) -> dict[str, str]:
        texts = {"queue": self.queue, "job_name": self.job_name, "tag": self.tag, "key": self.key}
        return {name: text for name, text in texts.items() if text is not None}


def slices(connection: Connection, table: str, selection: Selection) -> Iterator[Selection]:
    """Scan a table once; yield slices by id."""
    ids = array("q")
    statement = f"COPY (SELECT id FROM {table} WHERE {selection.condition} ORDER BY id) TO STDOUT"
    with connection.cursor() as cursor, cursor.copy(statement, selection.parameters()) as rows:
        rows.set_types(["int8"])
        ids.extend(job_id for (job_id,) in rows.rows())
    for first in range(0, len(ids), SLICE):
        yield replace(selection, ids=tuple(ids[first : first + SLICE]), whole=selection)
