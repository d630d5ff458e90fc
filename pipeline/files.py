"""The archive's files, written hidden and then named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drain.pipeline.datasources import columns
from drain.pipeline.lake.files import JOBS, UNFINISHED, Archive, File, current

if TYPE_CHECKING:
    from datetime import date

    import pyarrow as pa

COLUMNS = tuple(columns.TABLES["finished_jobs"])
# Of a file's rows, by table.
ORDERS = columns.KEYS | {JOBS: ("queue", "finished_at")}
# Stores serve parts of large files; many small ones are slow.
FILE_BYTES = 128 * 1024 * 1024
_GROUP_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Written:
    """Complete file under its hidden name."""

    path: str
    rows: int


class Writer:
    """Writes one hidden file, removed unless finished; `name` is unique in the day."""

    def __init__(self, archive: Archive, day: date | str, name: str) -> None:
        import pyarrow.parquet as pq

        directory = archive.directory(day)
        if archive.is_local:
            archive.system.create_dir(directory)
        self._archive = archive
        self.path = f"{directory}/_{name}{UNFINISHED}"
        self.rows = 0
        self.schema = columns.arrow_schema(columns.TABLES[archive.table])
        self._group: list[pa.RecordBatch] = []
        self._bytes = 0
        self._sink = archive.system.open_output_stream(self.path)
        self._parquet = pq.ParquetWriter(self._sink, self.schema, compression="zstd")

    def add(self, batch: pa.RecordBatch, *, sort: bool = False) -> bool:
        """Append rows; return True if a row group was written."""
        self._group.append(batch)
        self._bytes += batch.nbytes
        if self._bytes < _GROUP_BYTES:
            return False
        self._write(sort=sort)
        return True

    @property
    def size(self) -> int:
        """Bytes so far."""
        return int(self._sink.tell())

    def finish(self, *, sort: bool = False) -> Written:
        """Complete the file."""
        self._write(sort=sort)
        self._parquet.close()
        self._sink.close()
        return Written(self.path, self.rows)

    def discard(self) -> None:
        """Remove the file."""
        with suppress(Exception):
            self._parquet.close()
            self._sink.close()
        self._archive.system.delete_file(self.path)

    def _write(self, *, sort: bool) -> None:
        import pyarrow as pa

        rows = pa.Table.from_batches(self._group, self.schema) if self._group else None
        self._group, self._bytes = [], 0
        if rows is not None:
            rows = rows.sort_by([(name, "ascending") for name in ORDERS[JOBS]]) if sort else rows
            self._parquet.write_table(rows, row_group_size=max(1, rows.num_rows))
            self.rows += rows.num_rows


def write(
    archive: Archive, day: date | str, name: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[Written]:
    """Write ordered rows into hidden files."""
    writer: Writer | None = None
    try:
        for number, batch in enumerate(batches):
            if writer is None:
                writer = Writer(archive, day, f"{name}-{number}")
            if writer.add(batch.cast(writer.schema)) and writer.size >= FILE_BYTES:
                yield writer.finish()
                writer = None
        if writer is not None:
            yield writer.finish()
            writer = None
    except BaseException:
        if writer is not None:
            writer.discard()
        raise


def give_names(archive: Archive, names: Sequence[tuple[Written | File, str]]) -> None:
    """Name hidden files in this order, after syncing local ones."""
    if archive.is_local:
        for file, _ in names:
            _sync(Path(file.path))
    for file, name in names:
        archive.system.move(file.path, f"{file.path.rpartition('/')[0]}/{name}")


def add_to_day(
    archive: Archive, day: date | str, written: Sequence[Written], run: str, *, whole: bool
) -> None:
    """Add hidden files to a closed day; if `whole`, they replace numbered and hourly ones."""
    numbers = [file.generation[0] for file in archive.all_files(day) if file.generation]
    stem = f"{'whole' if whole else 'added'}-{max(numbers, default=0) + 1:06}"
    names = [f"{stem}-{part}-{len(written)}-{run}.parquet" for part in range(1, len(written) + 1)]
    give_names(archive, list(zip(written, names, strict=True)))


def remove(archive: Archive, paths: Iterable[str]) -> None:
    """Remove files, and emptied queue directories."""
    for path in paths:
        archive.system.delete_file(path)
        directory = Path(path).parent
        if directory.name.startswith("queue=") and archive.is_local and not any(directory.glob("*.parquet")):
            shutil.rmtree(directory)


def remove_unused(archive: Archive, day: date | str) -> None:
    """Remove a day's replaced files, and those of dead processes."""
    files = archive.all_files(day)
    remove(archive, [file.path for file in set(files) - set(current(files))])


def flush(archive: Archive, day: date | str) -> None:
    """Sync a day's local files: a power cut after the drop must not lose them."""
    written = Path(archive.directory(day))
    if not archive.is_local or not written.exists():
        return
    for place, _, names in os.walk(written):
        for path in (*(Path(place, name) for name in names), Path(place)):
            _sync(path)
    for parent in written.parents[:2]:
        _sync(parent)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
