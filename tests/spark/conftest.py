"""The Spark session of the tests, and what a backfill stages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from drain.__main__ import main
from tests.helpers import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the whole run, which tries a task three times; commands that are called here use it too."""
    from drain.pipeline import datasources
    from drain.pipeline.session import session

    # Queries on a few rows are over before compiling them has paid off; programs of their own compile as usual.
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
    }
    with session("local[2,3]", settings) as started:
        datasources.register(started)
        yield started


@pytest.fixture
def staged_from(spark: SparkSession, database_url: str) -> Callable[..., dict[str, list[Any]]]:
    """Function that backfills columns of a source; returns their values as staged, in the order of the first one."""

    def act(source: Path | str, names: Sequence[str], *options: str) -> dict[str, list[Any]]:
        words = ["backfill", str(source), "--database-url", database_url, "--job", "tests.act"]
        words += ["--args", ",".join(names), "--on-null", "stage", *options]
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        texts = query(database_url, "SELECT job_args::text FROM staged_jobs")
        rows = [json.loads(text, parse_float=Decimal) for (text,) in texts]
        rows.sort(key=lambda row: int(row[0]))
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    return act
