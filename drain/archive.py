"""Rows of the archive that `drain archive` writes, read without Spark: the latest days first, up to a bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from drain import extras
from drain.errors import ConfigError, DrainError

if TYPE_CHECKING:
    import pyarrow.dataset

# Hive's name for the directory of rows without a value.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
# Rows that are read at a time.
_ROWS = 4_096


def rows(
    path: str, columns: Sequence[str], *, queue: str | None = None, job_name: str | None = None
) -> Iterator[dict[str, Any]]:
    """Read rows of jobs that have run, the day that is the latest first; in no order within a day.

    Files of earlier versions of job-drain lack newer columns; their values are None.

    Args:
        path: Path of the archive, or its URI.
        columns: Columns of `finished_jobs`; `finished_date` is the day.
        queue: Only jobs of this queue.
        job_name: Only jobs of this name.

    Raises:
        ConfigError: pyarrow is missing, or there is no archive at the path.
        DrainError: A file cannot be read.
    """
    try:
        import pyarrow as pa
        import pyarrow.dataset as ds
    except ImportError:
        raise ConfigError(f"reading an archive needs pyarrow: {extras.install('spark')}") from None
    found = _open(ds, pa, path)
    of_queue = _of_queue(ds, queue)
    wanted = of_queue & ds.field("superseded_by").is_null()
    if job_name is not None:
        wanted &= ds.field("job_name") == job_name
    try:
        for day in _days(ds, found):
            for file in found.get_fragments(filter=of_queue & (ds.field("finished_date") == day)):
                yield from _rows(pa, file, columns, wanted)
    except (OSError, pa.ArrowException) as error:
        raise DrainError(f"the archive at {path} cannot be read: {_line(error)}") from None


def _of_queue(ds: Any, queue: str | None) -> pyarrow.dataset.Expression:
    if queue is None:
        return ds.scalar(True)  # noqa: FBT003  (a literal of Arrow's)
    return ds.field("queue").is_null() if queue == _NO_VALUE else ds.field("queue") == queue


def _rows(
    pa: Any, file: pyarrow.dataset.Fragment, columns: Sequence[str], wanted: pyarrow.dataset.Expression
) -> Iterator[dict[str, Any]]:
    there = pa.unify_schemas([file.physical_schema, _directories(pa)])
    absent = {*columns, "superseded_by"} - set(there.names)
    batches = file.to_batches(
        schema=pa.schema([*there, *((name, pa.null()) for name in absent)]),
        columns=list(columns),
        filter=wanted,
        batch_size=_ROWS,
        batch_readahead=1,
    )
    for batch in batches:
        for row in batch.to_pylist():
            if "queue" in row and row["queue"] is None:
                row["queue"] = _NO_VALUE
            yield row


def _directories(pa: Any) -> pyarrow.Schema:
    """Name the columns by which the archive is divided into directories."""
    return pa.schema([("finished_date", pa.string()), ("queue", pa.string())])


def _open(ds: Any, pa: Any, path: str) -> pyarrow.dataset.Dataset:
    directories = ds.partitioning(_directories(pa), flavor="hive")
    try:
        found = ds.dataset(path, format="parquet", partitioning=directories)
    except (OSError, pa.ArrowException) as error:
        line = "nothing is there" if isinstance(error, FileNotFoundError) else _line(error)
        raise ConfigError(f"there is no archive at {path}: {line}") from None
    if not {"finished_at", "finished_date"} <= set(found.schema.names):
        raise ConfigError(f"there is no archive at {path}: `drain archive` makes one")
    return found


def _days(ds: Any, found: Any) -> list[str]:
    keys = (ds.get_partition_keys(each.partition_expression) for each in found.get_fragments())
    return sorted({key["finished_date"] for key in keys if key.get("finished_date")}, reverse=True)


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
