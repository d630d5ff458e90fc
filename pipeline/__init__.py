"""Bulk work on Spark, on millions of jobs at once.

    backfill    stages a job for each row of a source
    replay      stages jobs again that have run
    reconcile   compares a source of truth with a target, and stages a job per difference
    archive     moves closed days of `finished_jobs` to Parquet
    stats       counts, retries, waiting and processing times
    audit       checks that every committed job is in exactly one place

The modules, from the command line down to Spark:

    commands        parse arguments, make one call, show the result
    backfill        a job for each row of a source
    replay          past jobs, staged again
    reconcile       a job for each difference between source and target
    comparison      the comparison behind reconcile
    sides           the compared columns, named and typed alike
    numbers         exact numbers of different types, compared by value
    archive         closed days, one at a time
    follow          finished jobs, seconds after they finish
    closing         Spark in a process of its own, which closes days meanwhile
    days            the files of a day: completed, replaced and compared by Spark
    hours           the files of open days: one per batch, merged
    files           the archive's files: written, named, removed, flushed
    history         all jobs at one instant: tables and archive
    conservation    the check of `audit --expected`
    stats           statistics: question, computation, tables, plots
    runs            run ids, each for one process at a time
    staging         stages the rows of a DataFrame once under its run id
    copying         COPY of rows into `staged_jobs`
    encoding        rows as CSV for COPY
    throttle        pauses while servers cannot keep up
    arguments       columns as a job's JSON arguments
    sources         files, queries, and any format of Spark's
    lines           CSV and JSON lines, each row checked
    gateway         objects of S3 and other stores, served to Spark
    parquet         nanosecond timestamps in Parquet
    rejects         unusable rows, and why
    lake            the archive's files in directories and object stores, read without Spark
    datasources     job tables and queries as Spark data sources
    session         the Spark session and its settings
    jvm             Spark's JVM, which ends with its driver
    class_data      the JVM's class data, for quicker starts
    java            the Java of the JVM
    interruption    signals while Spark works
    failures        Spark's exceptions in one line

- Jobs are staged once under a run id, in one commit or not at all unless a backfill asks for several. Driver, executors
  and tasks may die anywhere: repeating the command completes the run.
- Several tables are read as of one instant.

Any Spark program can use `drain.pipeline.datasources`. Spark starts only for these commands; neither the drain nor the
workers import it.
"""
