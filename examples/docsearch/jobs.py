"""Job of the example: it brings one document of the index up to date.

A worker process keeps its two connections from job to job.
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
    """Write one document into the index, as the store has it when the job runs.

    The job has the id as its only argument. Whether it runs once or twice, early or late, the index has the store's
    text afterwards.
    """
    started_at = time()
    with Session(_engine()) as session:
        document = session.get(Document, document_id)
    # The run is logged even if there is no document: a job of a transaction that was rolled back must be found.
    entry = None if document is None else Entry(document.name, document.text)
    _index().write(document_id, entry, started_at=started_at)


@cache
def _engine() -> sqlalchemy.Engine:
    return store.engine(os.environ["DRAIN_DATABASE_URL"]).execution_options(isolation_level="AUTOCOMMIT")


@cache
def _index() -> Index:
    return Index(Path(os.environ["DOCSEARCH_INDEX"]))
