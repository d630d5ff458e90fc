"""The documentation of Python's standard library, made searchable: the example that `drain demo` runs.

As Hypothesis saves annotations in PostgreSQL and indexes them into Elasticsearch, this saves
documentation strings in PostgreSQL and indexes them into SQLite's full text search.

One document's way through these modules:

    corpus        find the documentation strings, without importing what they document
    application   save each in a transaction of its own, together with its staged job; or roll back
    journal       what the application says of each transaction, whatever the database says
    store         the first store: the table of documents in PostgreSQL
    jobs          what a worker does for one document
    index         the second store: the full text index in SQLite
    verdict       compare the two stores, and both with the journal

and those that show it: `demo` starts and stops everything, `progress` and `report` are what a reader sees.
"""
