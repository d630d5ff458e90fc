"""Sources in an object store are read as files of this machine are; an error is one line with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import fs, orc, parquet as pq

from drain.__main__ import main
from drain.errors import ConfigError, DrainError
from drain.pipeline import gateway
from drain.pipeline.failures import explained
from drain.pipeline.sources import Source
from tests.helpers import query
from tests.object_store import object_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = {
    "rows.csv": 'id,note\n1,"say ""hi"""\n2,\n',
    "days/day=1/rows.csv": 'id,note\n1,"a\nb"\n',
    "days/day=2/more + 5%.csv": "id,note\n2,é\n",
    "lines/rows.jsonl": '{"id": 1}\n{"id": 2}\n',
    "long.csv": "id,note\n" + "".join(f"{number},some text\n" for number in range(50_000)),
}
TABLE = pa.table({"id": [1, 2], "at": pa.array([1999, None], pa.timestamp("ns"))})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    for name, text in TEXTS.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    (place / "table").mkdir()
    pq.write_table(TABLE, place / "table" / "part 0.parquet")
    orc.write_table(TABLE, place / "rows.orc")
    return place


@pytest.fixture(scope="module")
def lake(files: Path) -> Iterator[str]:
    """A bucket with the files."""
    with object_store() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        store, _ = fs.FileSystem.from_uri("s3://lake?allow_bucket_creation=true")
        store.create_dir("lake")
        fs.copy_files(str(files), "lake", destination_filesystem=store)
        store.create_dir("lake/days/day=3")
        yield "s3://lake"


def put(name: str, text: str) -> None:
    store, path = fs.FileSystem.from_uri(f"s3://lake/{name}")
    with store.open_output_stream(path) as file:
        file.write(text.encode())


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("rows.csv", {}),
        ("*ng.csv", {}),
        ("days", {"multiLine": "true"}),
        ("days/day=[12]/*.csv", {"multiLine": "true", "basePath": "days"}),
        ("lines", {}),
        ("table/", {}),
        ("rows.orc", {}),
    ],
)
def test_an_object_is_read_as_a_file_is(
    spark: SparkSession, lake: str, files: Path, path: str, options: dict[str, str]
) -> None:
    def read(place: str) -> list[str]:
        given = {name: f"{place}/{value}" if name == "basePath" else value for name, value in options.items()}
        rows = Source.of(f"{place}/{path}", given).load(spark)
        return sorted(map(str, (rows.schema, *rows.collect())))

    assert read(lake.replace("s3", "s3a", 1)) == read(str(files))


def test_rows_of_objects_are_staged_or_rejected(
    spark: SparkSession, lake: str, database_url: str, tmp_path: Path
) -> None:
    put("broken.csv", "id\n1\n2,x\n")
    rejects = tmp_path / "rejects.jsonl"
    words = ["backfill", "s3a://key:secret@lake/broken.csv", "--database-url", database_url, "--args", "id"]
    options = ["--job", "tests.act", "--reject", str(rejects), "--max-rejects", "1"]
    result = CliRunner().invoke(main, [*words, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert query(database_url, "SELECT job_args FROM staged_jobs") == [(["1"],)]
    assert json.loads(rejects.read_text(encoding="utf-8"))["record"] == "2,x"
    ((plan,),) = query(database_url, "SELECT plan FROM bulk_runs")
    assert json.loads(plan)["source"] == "csv:s3://key@lake/broken.csv"


@pytest.mark.parametrize("format_", ["", "csv:"])
@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("s3a://lake/none", "s3://lake/none does not exist"),
        ("s3://nolake/rows", "s3://nolake/rows cannot be read: the bucket does not exist: check its name"),
        ("s3://key:hidden@lake/none", "s3://key@lake/none does not exist"),
    ],
)
def test_an_unreadable_location_is_named(
    spark: SparkSession, lake: str, format_: str, place: str, line: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        Source.of(f"{format_}{place}").load(spark)
    assert str(raised.value).startswith(line)
    assert "hidden" not in str(raised.value)


def test_a_denied_key_or_an_unreachable_store_is_reported(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_keys(after=0)
    with pytest.raises(ConfigError, match="access was denied: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_"):
        Source.of(f"{lake}/days")
    check_keys(after=1_000_000)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="the store cannot be reached: check AWS_ENDPOINT_URL"):
        Source.of(f"{lake}/days")


def check_keys(*, after: int) -> None:
    """Let the store check keys after so many requests; it has none."""
    urlopen(
        Request(
            f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth",
            data=str(after).encode(),
            headers={"Content-Type": "text/plain"},
        )
    ).close()


def test_an_object_that_disappears_is_named(spark: SparkSession, lake: str) -> None:
    put("gone.csv", "id\n1\n")
    rows = Source.of(f"{lake}/gone.csv").load(spark)
    store, path = fs.FileSystem.from_uri(f"{lake}/gone.csv")
    store.delete_file(path)
    with pytest.raises(DrainError, match=r"^Spark: .*s3://lake/gone.csv does not exist"), explained():
        rows.collect()


@pytest.mark.parametrize("path", ["rows.csv", "long.csv", "days/day=11", "days", ""])
def test_only_the_objects_of_a_source_are_served(spark: SparkSession, lake: str, path: str) -> None:
    given, _ = gateway.reachable(spark, f"{lake}/days/day=1", {})
    url = (
        given.replace("webhdfs://", "http://").replace("/", "/webhdfs/v1/", 3).replace("/webhdfs/v1/", "/", 2)
    )
    assert urlopen(f"{url}?op=LISTSTATUS").status == 200
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{url.removesuffix('days/day=1')}{path}?op=LISTSTATUS")


def test_a_driver_installed_in_spark_takes_precedence(spark: SparkSession) -> None:
    spark._jsc.hadoopConfiguration().set("fs.s3n.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
    assert gateway.reachable(spark, "s3n://lake/rows.csv", {}) == ("s3n://lake/rows.csv", {})
