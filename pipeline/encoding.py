"""Rows as CSV for COPY; few imports, for Spark's Python processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from pyspark import TaskContext

# A part of COPY's input, or a file with it.
CHUNK = "part int, rows bigint, text binary, file string"
_SCHEMA = pa.schema(
    [("part", pa.int32()), ("rows", pa.int64()), ("text", pa.binary()), ("file", pa.string())]
)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
# In COPY, quoted empty text is not null.
_OPTIONS = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")


@dataclass(frozen=True)
class Encoder:
    """Encodes a partition's rows, for `mapInArrow`.

    Attributes:
        defaults: Values for null.
        directory: On the machine of driver and tasks, for texts that bypass the JVM.
    """

    defaults: Mapping[str, object]
    directory: Path | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode each batch as a row of `CHUNK`."""
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        for rows in batches:
            if rows.num_rows:
                chunk = {"part": part, "rows": rows.num_rows, **self._written(rows)}
                yield pa.RecordBatch.from_pylist([chunk], schema=_SCHEMA)

    def _written(self, rows: pa.RecordBatch) -> dict[str, object]:
        if self.directory is None:
            text = BytesIO()
            pyarrow.csv.write_csv(self._filled(rows), text, _OPTIONS)
            return {"text": text.getvalue()}
        with NamedTemporaryFile(dir=self.directory, delete=False) as file:
            pyarrow.csv.write_csv(self._filled(rows), file, _OPTIONS)
        return {"file": file.name}

    def _filled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch.schema.names
        arrays = [
            pyarrow.compute.fill_null(column, self.defaults[name]) if name in self.defaults else column
            for name, column in zip(names, batch.columns, strict=True)
        ]
        arrays = [_in_years(column) if pa.types.is_timestamp(column.type) else column for column in arrays]
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _in_years(times: pa.Array) -> pa.Array:
    """Replace years above 65,535, which wrap around in the writer, by a time that PostgreSQL refuses."""
    latest = pa.scalar(_LATEST, times.type)
    return pyarrow.compute.if_else(pyarrow.compute.greater(times, latest), latest, times)
