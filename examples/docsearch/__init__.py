"""The documentation of Python's standard library, made searchable: the example that `drain demo` runs.

Hypothesis saves annotations in PostgreSQL and indexes them into Elasticsearch; in the same way this application saves
documentation strings in PostgreSQL and indexes them into SQLite's full text search.

The modules, in the order in which a document passes:

    corpus        the documentation strings, found without an import of what they document
    application   the application: each document and its staged job in one transaction, some of them rolled back
    journal       the application's own record of each transaction, independent of the database
    store         the first store: the table of documents in PostgreSQL
    jobs          the job of a document: its entry in the index
    index         the second store: the full text index in SQLite
    verdict       the comparison of the two stores, and of both with the journal
    spark         the index as a Spark data source, for `drain reconcile`

and the modules that run and show the example:

    demo          start and end of all processes: `drain demo`
    progress      output while it runs
    report        output at the end
"""
