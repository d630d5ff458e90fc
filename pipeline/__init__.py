"""Bulk work on Spark, on millions of jobs at once.

The modules, from the command line down to Spark:

    commands        parse arguments, make one call, show the result
    backfill        a job for each row of a source
    replay          past jobs, staged again
    reconcile       a job for each difference between source and target
    comparison      the comparison behind reconcile
    sides           the compared columns, named and typed alike
    numbers         exact numbers of different types, compared by value
    archive         closed days of `finished_jobs`, moved to Parquet
    follow          finished jobs, archived within seconds
    closing         closes days in a separate process
    days            the files of a closed day
    hours           the files of open days
    files           writes, names, removes and flushes files
    history         all jobs at one instant: tables and archive
    conservation    checks that each committed job is in one place
    stats           counts, retries, waiting and processing times
    runs            run ids, each for one process at a time
    staging         stages the rows of a DataFrame once
    flows           rows as the members of a new flow
    copying         COPY of rows into `staged_jobs`
    encoding        rows as CSV for COPY
    throttle        pauses while servers cannot keep up
    arguments       columns as a job's JSON arguments
    sources         files, queries, and any format of Spark's
    lines           CSV and JSON lines, each row checked
    gateway         object stores, served to Spark
    parquet         nanosecond timestamps
    rejects         unusable rows, and why
    lake            the archive's files, read without Spark
    datasources     job tables and queries as Spark data sources
    session         the Spark session and its settings
    jvm             Spark's JVM, which ends with its driver
    class_data      the JVM's class data, for quicker starts
    java            the Java of the JVM
    interruption    signals while Spark works
    failures        Spark's exceptions in one line

A run id is staged once, in one commit or not at all unless a backfill asks for several. Driver, executors and tasks may
die anywhere: repeating the command completes the run. Several tables are read as of one instant.

Any Spark program can use `drain.pipeline.datasources`. Neither the drain nor the workers import Spark.
"""
