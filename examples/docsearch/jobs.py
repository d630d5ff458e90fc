"""What workers do: bring one document of the index up to date.

The worker process keeps its two connections from job to job.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from time import time

import sqlalchemy
from sqlalchemy.orm import Session

from docsearch import store
from docsearch.corpus import Entry
from docsearch.index import Index
from docsearch.store import Document
from drain import job


@job(name="docsearch.index_document", queue="index")
def index_document(document_id: int) -> None:
    """Write one document into the index, as it stands in the store at this moment.

    The job carries the id alone. Whether it runs once or twice, early or late, the index ends up
    with what the store holds.
    """
    started_at = time()
    with Session(_engine()) as session:
        document = session.get(Document, document_id)
    # Without a document there is nothing to index. The run is logged all the same: it would be that
    # of a transaction which was rolled back, and that must not go unseen.
    entry = None if document is None else Entry(document.name, document.text)
    _index().write(document_id, entry, started_at=started_at)


@cache
def _engine() -> sqlalchemy.Engine:
    return store.engine(os.environ["DRAIN_DATABASE_URL"]).execution_options(isolation_level="AUTOCOMMIT")


@cache
def _index() -> Index:
    return Index(Path(os.environ["DOCSEARCH_INDEX"]))
