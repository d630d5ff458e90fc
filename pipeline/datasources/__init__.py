"""Spark data sources for the job tables, usable from any Spark program; `drain.pipeline.staging` stages jobs.

    from drain.pipeline import datasources

    datasources.register(spark)
    spark.read.format("finished_jobs").option("where", "queue = 'mail'").load()
    spark.readStream.format("finished_jobs").load()

The database is that of DRAIN_DATABASE_URL in the driver's environment, or of the option `database_url`. On other
machines, Spark's executors need this package installed there too.

The modules, from the bottom:

    adbc             Arrow batches out of PostgreSQL
    columns          the tables' columns, with their types in Spark, Arrow and SQL
    conditions       Spark's filters as conditions in SQL
    options          options of the data sources, checked
    snapshot         one instant for many connections
    snapshot_holder  the process that holds a snapshot open for the tables' readers
    tables           reading: a job table in parallel, by ranges of its blocks
    transactions     finished jobs in the order of their transactions
    archived         reading: the files of an archive
    query            reading: the rows of any SELECT
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drain.pipeline.datasources.columns import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Names under which `register` registers the data sources.
NAMES = (*TABLES, "postgres_query", "archived_jobs")


def register(spark: SparkSession) -> None:
    """Register the data sources with this session under their names; safe to repeat."""
    from drain.pipeline.datasources.archived import ArchivedJobs
    from drain.pipeline.datasources.query import PostgresQuery
    from drain.pipeline.datasources.tables import DeadJobs, FinishedJobs, InflightJobs, StagedJobs

    for source in (StagedJobs, InflightJobs, FinishedJobs, DeadJobs, PostgresQuery, ArchivedJobs):
        spark.dataSource.register(source)
