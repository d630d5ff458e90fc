"""Files of the archive: which count, while others are written, replaced or left by a process that died."""

from __future__ import annotations

import random

import pytest

from drain.pipeline.lake.files import File, current

DAY = "2026-11-20"
LEGACY = File(f"a/finished_date={DAY}/queue=mail/part-00000-1.c000.zstd.parquet", DAY, 1, "mail")


def counted(*names: str) -> list[str]:
    files = [File(f"a/finished_date={DAY}/{name}", DAY, 1) for name in names]
    random.Random(len(names)).shuffle(files)
    return sorted(file.name for file in current(files))


def test_a_file_still_under_its_temporary_name_does_not_count() -> None:
    assert counted("_order-1-2-3.new", "hour-01-0-7.parquet") == ["hour-01-0-7.parquet"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [("hour-01-0-9.parquet", 1), ("hour-01-5-20.parquet", 2), ("hour-02-0-20.parquet", 3)],
    ids=["all transactions", "the later transactions", "another hour"],
)
def test_a_merged_file_replaces_the_files_of_its_hour_and_transactions(name: str, kept: int) -> None:
    parts = ["hour-01-0-7.parquet", "hour-01-7-9.parquet"]
    assert len(counted(*parts, name)) == kept


def test_a_whole_day_replaces_older_files() -> None:
    older = ["hour-01-0-7.parquet", "whole-000001-1-1-a.parquet", "added-000002-1-1-b.parquet"]
    newer = ["whole-000003-1-2-c.parquet", "whole-000003-2-2-c.parquet"]
    later = ["added-000004-1-1-d.parquet"]
    assert counted(*older, *newer, *later) == sorted([*newer, *later])


def test_a_part_of_a_day_counts_only_if_it_replaces_nothing() -> None:
    part = "whole-000003-2-2-c.parquet"
    assert counted("hour-01-0-7.parquet", part) == ["hour-01-0-7.parquet"]
    assert counted("whole-000001-1-1-a.parquet", part) == ["whole-000001-1-1-a.parquet"]
    # A file of the day has been lost since.
    assert counted(part) == [part]


def test_files_of_earlier_versions_always_count() -> None:
    whole = File(f"a/finished_date={DAY}/whole-000001-1-1-a.parquet", DAY, 1)
    assert set(current([LEGACY, whole])) == {LEGACY, whole}
    named_as_ours = File(f"a/finished_date={DAY}/queue=mail/hour-01-0-7.parquet", DAY, 1, "mail")
    assert (named_as_ours.span, named_as_ours.generation) == (None, None)
