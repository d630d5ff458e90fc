"""Spark data sources for the job tables, usable from anybody's Spark program.

    from pipeline import datasources

    datasources.register(spark)
    df.write.format("staged_jobs").option("run_id", "reindex-2026-11").mode("append").save()
    spark.read.format("finished_jobs").option("where", "queue = 'mail'").load()
    spark.readStream.format("finished_jobs").load()

The database is that of DRAIN_DATABASE_URL in the driver's environment, or of the option `database_url`. Whatever
runs in executors needs this package installed there too.

Modules, from the bottom: `adbc` reads and writes Arrow batches; `columns` says what the tables look like; `snapshot`
and `keeper` let many connections see one instant; `conditions` turns Spark's filters into SQL; `tables`, `follow` and
`staging` read a table, follow one, and stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let this session read and write the job tables by their names; safe to repeat."""
    from pipeline.datasources.query import PostgresQuery
    from pipeline.datasources.tables import DeadJobs, FinishedJobs, InflightJobs, StagedJobs

    for source in (StagedJobs, InflightJobs, FinishedJobs, DeadJobs, PostgresQuery):
        spark.dataSource.register(source)
