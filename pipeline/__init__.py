"""Bulk work on Spark: operations on millions of jobs at once.

    backfill    stage a job for each row of a source
    replay      stage again jobs that have run
    reconcile   compare a source of truth with a target, and stage a job for each difference
    archive     move closed days of `finished_jobs` to Parquet
    stats       report counts, retries, waiting and processing times
    audit       check that every job that an application committed is in exactly one place

The modules, from the command line down to Spark:

    commands        the commands: arguments parsed, one call, and its result shown
    backfill        backfill: a job for each row of a source
    replay          replay: jobs that have run are staged again
    reconcile       reconcile: a job for each difference between a source and a target
    comparison      the comparison that reconcile is made of
    sides           the columns that it compares, with the same names and types on both sides
    numbers         exact numbers of different types, compared by value
    archive         archive: closed days, one after the other
    follow          continuous archive: finished jobs, a few seconds after they finish
    closing         Spark in a process of its own, which closes days meanwhile
    days            the files of a day: completed or replaced by Spark, and compared
    hours           the files of days that are not closed: one for each batch, and merged
    files           the archive's files: written, named, removed and flushed
    history         all jobs as of one instant: the four tables and the archive
    conservation    the check that `audit --expected` makes: a list of jobs against their history
    stats           statistics: a question, its computation, and its tables and plots
    runs            run ids: one process at a time for each
    staging         a run that stages the rows of a DataFrame, once under its id
    copying         COPY of rows into `staged_jobs`, in one transaction or several
    encoding        rows as the CSV of that COPY
    throttle        pauses of a run while the servers cannot keep up
    arguments       columns of a row as the JSON arguments of a job
    sources         sources that a command can read: files, queries, any format of Spark's
    lines           CSV and JSON lines: each row checked
    gateway         objects of S3 and other stores, served to Spark
    parquet         timestamps of nanoseconds in Parquet
    rejects         rows that cannot be used, and why
    lake            the archive's files in directories and object stores, read without Spark
    datasources     the job tables and queries as Spark data sources
    session         the Spark session, and its settings
    jvm             Spark's JVM, which ends with its driver
    class_data      the JVM's class data, for quicker starts
    java            the Java that the JVM runs on
    interruption    signals while Spark works
    failures        Spark's exceptions, each explained in one line

All commands use the data sources in `drain.pipeline.datasources`, which any Spark program can use; two rules hold:

- Jobs are staged in one commit or not at all, unless a backfill is to commit several times, and only once under one
  run id. A driver, an executor or a task may die at any moment: repeating the command completes the run.
- Several tables are read as of one instant.

Spark starts in seconds, and only where one of these commands needs it; neither the drain nor the workers import it.
"""
