"""Commands of `drain` that run on Spark; each parses its arguments, makes one call, and shows the result.

    options     options that all of them share: where Spark runs, and its settings
    backfill    `drain backfill`
    replay      `drain replay`
    reconcile   `drain reconcile`
    archive     `drain archive`
    stats       `drain stats`
    audit       `drain audit --expected`

None of these modules imports Spark before its command is called.
"""
