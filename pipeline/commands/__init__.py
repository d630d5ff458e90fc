"""Commands of `drain` on Spark; each parses arguments, makes one call, and shows the result.

    options     shared options: where Spark runs, and its settings
    backfill    `drain backfill`
    replay      `drain replay`
    reconcile   `drain reconcile`
    archive     `drain archive`
    stats       `drain stats`
    audit       `drain audit --expected`

Each imports Spark only when called.
"""
