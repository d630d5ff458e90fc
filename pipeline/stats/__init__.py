"""Statistics of jobs: counts by outcome, retries, waiting and processing times, archived and live together.

    question   the question: since when, of which queue and job, per hour or day
    measures   computation: finished jobs, in one pass of Spark
    counts     computation: all other jobs, in Postgres
    report     the answer, as plain values
    as_json    the answer for programs
    words      numbers for people
    tables     tables of text, for a terminal and for a page
    plots      numbers over time that a page plots
    drawing    plots as SVG
    page       a page of both that works without a network or scripts

Waiting lasts from when a job was due (staged, or scheduled for later) until it was claimed. Only the latest claim of a
job is known, so a job that was claimed more than once has no waiting time. Processing lasts from the claim that
finished the job until its finish. A time below zero, between two clocks, counts as zero.

Weeks end at the report's instant, so that both are whole; days and hours are those of UTC.

Average, shortest and longest time are exact. Percentiles come from a histogram whose buckets grow by 2 %: each is
within 1 % of the exact value, however many jobs there are, and one pass finds all of them.
"""
