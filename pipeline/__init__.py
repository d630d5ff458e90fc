"""Bulk work on Spark: operations on millions of jobs at once.

    backfill    stage a job for each row of a source
    reconcile   compare a source of truth with a target, and stage a job for each difference
    archive     move closed days of `finished_jobs` to Parquet
    stats       what happened: counts, retries, waiting and processing times
    audit       is every job that an application committed in exactly one place?

All of them stand on the data sources in `pipeline.datasources`, which any Spark program can use, and on two rules:

- What is staged appears in one commit or not at all, and under one run id only once. So a driver, an executor or a
  task may die at any moment, and the same command again completes or repeats harmlessly.
- What is read of several tables is read as of one instant.

Spark starts in seconds, and only where a command of these needs it; nothing of it is imported by the drain or the
workers.
"""
