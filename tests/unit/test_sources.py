"""What the format of a source is told by: what is said, what a directory holds, what a name ends in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drain.errors import ConfigError
from drain.pipeline.lake import stores
from drain.pipeline.sources import Source


def directory(path: Path, *names: str) -> str:
    path.mkdir()
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    return str(path)


@pytest.mark.parametrize(
    ("text", "format_", "path"),
    [
        ("/data/orders.parquet", "parquet", "/data/orders.parquet"),
        ("/data/orders.JSONL.gz", "json", "/data/orders.JSONL.gz"),
        ("CSV:orders", "csv", "orders"),
        ("jsonl:orders", "json", "orders"),
        ("delta:s3a://lake/orders", "delta", "s3a://lake/orders"),
        ("file:/data/orders.jsonl", "json", "file:/data/orders.jsonl"),
        ("file:///data/orders.csv", "csv", "file:///data/orders.csv"),
        ("hdfs://lake/orders.orc/", "orc", "hdfs://lake/orders.orc/"),
        ("s3://lake/orders/*.orc", "orc", "s3://lake/orders/*.orc"),
    ],
)
def test_the_format_follows_from_the_name_or_a_prefix(text: str, format_: str, path: str) -> None:
    source = Source.of(text)
    assert (source.format, source.path) == (format_, path)
    assert (source.options.get("header") == "true") == (format_ == "csv")


@pytest.mark.parametrize(
    ("names", "format_"),
    [
        (["part-0.snappy.parquet", "part-1.parquet", "_SUCCESS", ".part-0.crc"], "parquet"),
        (["year=2026/day=1/part-0.parquet", "year=2026/day=2/part-0.parquet"], "parquet"),
        (["part-0.json.gz", "part-1.jsonl"], "json"),
        (["part-0.csv", "_notes/read.txt"], "csv"),
        (["part-0.parquet", "_delta_log/0.json"], "delta"),
    ],
)
def test_a_directorys_format_follows_from_its_files_not_its_name(
    tmp_path: Path, names: list[str], format_: str
) -> None:
    place = directory(tmp_path / "orders.orc", *names)
    assert Source.of(place).format == format_
    assert Source.of(f"file:{place}/").format == format_


def test_a_directory_of_unclear_files_takes_its_format_from_its_name(tmp_path: Path) -> None:
    assert Source.of(directory(tmp_path / "orders.parquet", "part-00000")).format == "parquet"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], "no files"),
        (["_SUCCESS"], "no files"),
        (["a.parquet", "b.parquet", "c.csv"], "2 .parquet files, 1 .csv file"),
        (["a.parquet", "a=1/b.parquet", "b=1/notes"], "2 .parquet files, 1 file without an ending"),
        (["2026/a.parquet", "2027/a.parquet"], "2 directories that are not partitions"),
    ],
)
def test_a_directory_of_ambiguous_format_is_refused_with_its_contents(
    tmp_path: Path, names: list[str], found: str
) -> None:
    place = directory(tmp_path / "orders", *names)
    with pytest.raises(ConfigError, match=re.escape(f"which holds {found}; put the format before the path")):
        Source.of(place)


def test_a_path_that_only_spark_can_list_is_judged_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"cannot detect the format of 'hdfs://lake/orders'; give a path"):
        Source.of("hdfs://lake/orders")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("/data/a?b=c", "/data/a?b=c"),
        ("hdfs://lake/a", "hdfs://lake/a"),
        ("s3a://lake/a-?.csv", "s3://lake/a-?.csv"),
        ("s3://key:se/c@ret@lake/a?endpoint_override=host&scheme=http", "s3://key@lake/a"),
        ("abfss://box@shop.dfs.core.windows.net/a", "abfs://box@shop.dfs.core.windows.net/a"),
    ],
)
def test_object_urls_are_shown_in_one_form_without_secrets(given: str, shown: str) -> None:
    assert stores.shown(given) == shown
    assert Source.of(f"csv:{given}").description()["source"] == f"csv:{shown}"
