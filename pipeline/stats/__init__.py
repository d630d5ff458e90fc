"""How it went: counts by outcome, retries, waiting and processing times, over archived and live jobs together.

    question   what is asked: since when, of which queue and job, per hour or day
    report     the answer, as plain values
    as_json    the same for programs
    measures   finds it: the finished jobs in one pass of Spark's
    counts     and all others in Postgres
    words      numbers for people
    tables     it as tables of text, for a terminal and for a page
    plots      it as plots
    page       a page of both that works without a network

Waiting is from when a job was due (staged, or scheduled for later) until it was claimed. Only the latest claim of a
job is known, so a job that was claimed more than once has no waiting time. Processing is from the claim that finished
the job until then. A time below zero, between two clocks, counts as zero.

Average, shortest and longest are exact. Percentiles come from a histogram, whose buckets grow by 2 %: each is within
1 % of the truth, however many jobs there are, and one pass finds all of them.
"""
