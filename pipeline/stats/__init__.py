"""Statistics of jobs: counts by outcome, retries, waiting and processing times, archived and live together.

    question   selection of jobs and periods
    measures   finished jobs, in one pass of Spark
    counts     all other jobs, in Postgres
    flows      flows by name, and their nodes
    report     results as plain values
    as_json    results as JSON
    words      formats of numbers
    tables     tables for terminal and page
    plots      plotted numbers over time
    drawing    plots as SVG
    page       self-contained HTML

Only the latest claim is recorded, so the waiting time of a job claimed repeatedly is unknown. A negative time, between
two clocks, counts as zero.

Weeks end at the report's instant, so that both are whole; days and hours are those of UTC.

Percentiles come from a histogram whose buckets grow by 2 %: each is within 1 % of the exact value,
and one pass finds all.
"""
