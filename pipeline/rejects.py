"""Unusable rows of a source, with reasons."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from drain.errors import DrainError
from drain.formatting import count

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Why a row is unusable, and its text; null for good rows.
REASON = "_drain_reason"
RECORD = "_drain_record"
_SHOWN_CHARACTERS = 200


@dataclass
class Rejects:
    """Rejects of one run, written to `path` as JSON lines with `reason` and `record`; more than `most` fail it."""

    path: Path | None = None
    most: int = 0
    found: int = 0

    def take(self, rows: DataFrame) -> None:
        """Write the rejects; fail if there are too many."""
        from pyspark.sql import functions as f

        first = ""
        with self._file() as file:
            refused = rows.where(f.col(REASON).isNotNull()).select(REASON, RECORD)
            for self.found, (reason, record) in enumerate(refused.toLocalIterator(), 1):
                first = first or reason
                file.write(json.dumps({"reason": reason, "record": record}, ensure_ascii=False) + "\n")
        if self.found > self.most:
            kept = f", in {self.path}" if self.path else ""
            words = count(self.found, "row cannot", "rows cannot")
            raise DrainError(f"{words} be staged{kept}, and --max-rejects is {self.most}; the first: {first}")

    @contextmanager
    def _file(self) -> Iterator[IO[str]]:
        try:
            with Path(self.path or os.devnull).open("w", encoding="utf-8") as file:
                yield file
        except OSError as error:
            raise DrainError(f"the rejects cannot be written to {self.path}: {error.strerror}") from None


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Keep rows on disk, to read the source once."""
    from pyspark import StorageLevel

    stored = rows.persist(StorageLevel.DISK_ONLY)
    try:
        yield stored
    finally:
        # The session may have ended.
        with suppress(Exception):
            stored.unpersist()


@contextmanager
def separated(rows: DataFrame, rejects: Rejects) -> Iterator[DataFrame]:
    """Yield the good rows; write others to a file, if any."""
    if rejects.path is None:
        yield without_any(rows)
        return
    with kept(rows) as stored:
        rejects.take(stored)
        yield without_any(stored.where(f"{REASON} IS NULL"))


def without_any(rows: DataFrame) -> DataFrame:
    """Drop REASON and RECORD; reading a reject fails with its reason."""
    from pyspark.sql import functions as f

    reason = f.col(REASON)
    return rows.where(f.when(reason.isNull(), f.lit(col=True)).otherwise(f.raise_error(reason))).drop(
        REASON, RECORD
    )


def none(rows: DataFrame) -> DataFrame:
    """Add REASON and RECORD to good rows."""
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("string")
    return rows.withColumns({REASON: nothing, RECORD: nothing})


def shown(value: Column) -> Column:
    """Quote a text on one line, up to 200 characters."""
    from pyspark.sql import functions as f

    text = f.regexp_replace(f.left(value, f.lit(_SHOWN_CHARACTERS)), r"[\r\n]+", " ")
    return f.concat(f.lit("'"), text, f.lit("'"))
