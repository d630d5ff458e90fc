"""The archive's files, and their rows.

    finished_date=2026-11-20/whole-000001-1-2-….parquet   the day, in two files
    finished_date=2026-11-20/added-000002-1-1-….parquet   rows that came later
    finished_date=2026-11-21/hour-13-700-900.parquet      rows of transactions 701 to 900, around 13:00
    job_steps/finished_date=2026-11-20/whole-….parquet    steps of the day's jobs; so for job_edges and flows

Names say which files a file replaces, so a reader that lists a day during a replacement sees each row once. A day's
complete `whole` set replaces lower numbers and all hours; an hour's file replaces those whose transactions it covers.
Files of job-drain 0.1, `finished_date=2026-11-20/queue=mail/….parquet`, lack the column `queue`, and always count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from drain.errors import ConfigError, DrainError
from drain.pipeline.lake import stores

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

DATE = "finished_date"
JOBS = "finished_jobs"
QUEUE = "queue"
# Suffix of hidden, incomplete files.
UNFINISHED = ".new"

_ENDING = ".parquet"
_HOUR = re.compile(r"hour-(?P<hour>\d\d)-(?P<start>\d+)-(?P<end>\d+)\.parquet")
_NUMBERED = re.compile(
    r"(?P<kind>whole|added)-(?P<number>\d+)-(?P<part>\d+)-(?P<parts>\d+)-\w+\.parquet", re.ASCII
)
_ROWS = 4_096


@dataclass(frozen=True)
class Span:
    """Transactions of a `--follow` file: `start` < number <= `end`; `hour` is its latest row's in UTC."""

    hour: int
    start: int
    end: int

    def replaces(self, other: Span) -> bool:
        """Return True if this file replaces the other."""
        return (
            self != other and self.hour == other.hour and self.start <= other.start and self.end >= other.end
        )


@dataclass(frozen=True)
class File:
    """File with its size in bytes, and its rows' queue if its directory names it."""

    path: str
    day: str
    size: int
    queue: str | None = None

    @property
    def name(self) -> str:
        """Name within its directory."""
        return self.path.rpartition("/")[2]

    @property
    def span(self) -> Span | None:
        """Transactions, if `--follow` wrote it."""
        found = None if self.queue is not None else _HOUR.fullmatch(self.name)
        return Span(int(found["hour"]), int(found["start"]), int(found["end"])) if found else None

    @property
    def generation(self) -> tuple[int, str, int] | None:
        """Number, kind and parts of its set, written at a day's close."""
        found = None if self.queue is not None else _NUMBERED.fullmatch(self.name)
        return (int(found["number"]), found["kind"], int(found["parts"])) if found else None


class Archive:
    """Opened directory of a table, by default of jobs; see `stores.opened`."""

    def __init__(self, place: str, table: str = JOBS) -> None:
        if not place:
            raise ConfigError("the path of the archive is empty")
        self.place = place
        self.system, root = stores.opened(place)
        self.table = table
        self.root = root.rstrip("/") if table == JOBS else f"{root.rstrip('/')}/{table}"

    @property
    def is_local(self) -> bool:
        """True if on this machine, or mounted."""
        from pyarrow.fs import LocalFileSystem

        return isinstance(self.system, LocalFileSystem)

    def directory(self, day: Any) -> str:
        """Return a day's directory."""
        return f"{self.root}/{DATE}={day}"

    def exists(self) -> bool:
        """Return True for a directory; DrainError without access."""
        from pyarrow.fs import FileSelector

        with self.explained():
            try:
                # Object stores have no empty directories, and report a missing bucket only here.
                self.system.get_file_info(FileSelector(self.root))
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def days(self) -> list[str]:
        """List days with a directory, earliest first."""
        names = (info.base_name for info in self._list(self.root, recursive=False))
        return sorted(name.removeprefix(f"{DATE}=") for name in names if name.startswith(f"{DATE}="))

    def all_files(self, day: Any) -> list[File]:
        """List a day's files, including replaced and incomplete ones."""
        directory = self.directory(day)
        files = []
        for info in self._list(directory, recursive=True):
            above, _, name = info.path.removeprefix(f"{directory}/").rpartition("/")
            if info.is_file and (name.endswith(UNFINISHED) or not name.startswith((".", "_"))):
                queue = unquote(above.removeprefix(f"{QUEUE}=")) if above.startswith(f"{QUEUE}=") else None
                files.append(File(info.path, str(day), info.size, queue))
        return sorted(files, key=lambda file: file.path)

    def files(self, day: Any) -> list[File]:
        """List a day's current files."""
        return current(self.all_files(day))

    def batches(
        self,
        file: File,
        columns: Sequence[str],
        *,
        where: ds.Expression | None = None,
        needed: Iterable[str] = (),
        rows: int = _ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of `finished_jobs` and `finished_date`; null if they are newer than the file.

        Args:
            needed: Further columns of the condition.
            rows: Per batch.
        """
        import pyarrow as pa
        import pyarrow.dataset as ds

        known = {DATE: file.day} | ({} if file.queue is None else {QUEUE: file.queue})
        guarantee = reduce(and_, (ds.field(name) == value for name, value in known.items()))
        fragment = ds.ParquetFileFormat().make_fragment(file.path, self.system, guarantee)
        fields = [field for field in fragment.physical_schema if field.name not in known]
        fields += [pa.field(name, pa.string()) for name in known]
        absent = sorted({*columns, *needed} - {field.name for field in fields})
        return fragment.to_batches(  # type: ignore[no-any-return]
            schema=pa.schema([*fields, *((name, pa.null()) for name in absent)]),
            columns=list(columns),
            filter=where,
            batch_size=rows,
            batch_readahead=1,
        )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn PyArrow's errors into a DrainError."""
        import pyarrow as pa

        try:
            yield
        except FileNotFoundError:
            place = stores.shown(self.place)
            raise DrainError(
                f"files of the archive at {place} were replaced during the read: run this again"
            ) from None
        except (OSError, pa.ArrowException) as error:
            text = stores.explanation(self.place, error).replace("cannot be read", "cannot be used", 1)
            raise DrainError(f"the archive at {text}") from None

    def _list(self, directory: str, *, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(directory, recursive=recursive, allow_not_found=True)
        with self.explained():
            return list(self.system.get_file_info(selector))


def current(files: Sequence[File]) -> list[File]:
    """Choose the files that count: complete, and not replaced."""
    files = [file for file in files if file.name.endswith(_ENDING)]
    spans = [file.span for file in files if file.span]
    files = [file for file in files if not (file.span and any(other.replaces(file.span) for other in spans))]
    whole = defaultdict(list)
    for file in files:
        if file.generation and file.generation[1] == "whole":
            whole[file.generation].append(file)
    for generation in sorted(whole, reverse=True):
        number, _, parts = generation
        older = {file for file in files if file.span or (file.generation and file.generation[0] < number)}
        if len(whole[generation]) == parts:
            return [file for file in files if file not in older]
        if older:
            # The process died while naming these files.
            files = [file for file in files if file not in whole[generation]]
    return files


def rows(
    path: str, columns: Sequence[str], *, queue: str | None = None, job_name: str | None = None
) -> Iterator[dict[str, Any]]:
    """Read past jobs, latest day first, unordered within a day; columns newer than a file are None.

    Raises:
        ConfigError: pyarrow or the archive is missing.
        DrainError: A file is unreadable.
    """
    archive = Archive(path)
    import pyarrow.dataset as ds

    days = archive.days()
    if not days:
        lacks = "`drain archive` creates one" if archive.exists() else "nothing is there"
        raise ConfigError(f"there is no archive at {stores.shown(path)}: {lacks}")
    wanted = ds.field("superseded_by").is_null()
    for name, value in ((QUEUE, queue), ("job_name", job_name)):
        if value is not None:
            wanted &= ds.field(name) == value
    with archive.explained():
        for day in reversed(days):
            for file in archive.files(day):
                if file.queue in (None, queue) or queue is None:
                    batches = archive.batches(
                        file, columns, where=wanted, needed=["superseded_by", QUEUE, "job_name"]
                    )
                    for batch in batches:
                        yield from batch.to_pylist()
