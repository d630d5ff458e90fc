"""Spark data sources for the job tables, usable from any Spark program.

    from pipeline import datasources

    datasources.register(spark)
    df.write.format("staged_jobs").option("run_id", "reindex-2026-11").mode("append").save()
    spark.read.format("finished_jobs").option("where", "queue = 'mail'").load()
    spark.readStream.format("finished_jobs").load()

The database is that of DRAIN_DATABASE_URL in the driver's environment, or of the option `database_url`. On other
machines, Spark's executors need this package installed there too.

The modules, from the bottom:

    adbc             Arrow batches out of PostgreSQL and into it
    columns          the tables' columns, with their types in Spark, Arrow and SQL
    conditions       Spark's filters as conditions in SQL
    options          options of the data sources, checked
    snapshot         one instant for many connections
    snapshot_holder  the process that holds a snapshot open for the tables' readers
    tables           reading: a job table in parallel, by ranges of its blocks
    follow           reading: `finished_jobs` as a stream
    query            reading: the rows of any SELECT
    staging          writing: `staged_jobs`, in one commit
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.datasources.columns import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Names under which `register` registers the data sources.
NAMES = (*TABLES, "postgres_query")


def register(spark: SparkSession) -> None:
    """Register the job tables with this session under their names, and `postgres_query`; safe to repeat."""
    from pipeline.datasources.query import PostgresQuery
    from pipeline.datasources.tables import DeadJobs, FinishedJobs, InflightJobs, StagedJobs

    for source in (StagedJobs, InflightJobs, FinishedJobs, DeadJobs, PostgresQuery):
        spark.dataSource.register(source)
