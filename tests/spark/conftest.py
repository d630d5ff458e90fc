"""The Spark session of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for the whole run, which tries a task three times; commands that are called here use it too."""
    from pipeline import datasources
    from pipeline.session import session

    # Queries on a few rows are over before compiling them has paid off; programs of their own compile as usual.
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
    }
    with session("local[2,3]", settings) as started:
        datasources.register(started)
        yield started
