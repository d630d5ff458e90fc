"""Spark data sources for the job tables, for any Spark program; `drain.pipeline.staging` stages jobs.

    from drain.pipeline import datasources

    datasources.register(spark)
    spark.read.format("finished_jobs").option("where", "queue = 'mail'").load()
    spark.readStream.format("finished_jobs").load()

The database is the option `database_url`, or DRAIN_DATABASE_URL in the driver's environment. Executors on other
machines need this package too.

The modules, from the bottom:

    adbc             Arrow batches out of PostgreSQL
    columns          the tables' columns in Spark, Arrow and SQL
    conditions       Spark's filters in SQL
    options          checked options
    snapshot         one instant for many connections
    snapshot_holder  the process that holds a snapshot for readers
    tables           job tables, read in parallel by ranges of blocks
    transactions     finished jobs in transaction order
    archived         the archive's files, of jobs or other tables
    query            the rows of any SELECT
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drain.pipeline.datasources.columns import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = (*TABLES, "postgres_query", "archived_jobs")


def register(spark: SparkSession) -> None:
    """Register the data sources; safe to repeat."""
    from drain.pipeline.datasources.archived import ArchivedJobs
    from drain.pipeline.datasources.query import PostgresQuery
    from drain.pipeline.datasources.tables import (
        DeadJobs,
        FinishedJobs,
        Flows,
        InflightJobs,
        JobEdges,
        JobSteps,
        StagedJobs,
    )

    jobs = (StagedJobs, InflightJobs, FinishedJobs, DeadJobs)
    for source in (*jobs, JobSteps, JobEdges, Flows, PostgresQuery, ArchivedJobs):
        spark.dataSource.register(source)
