"""Application: saves each document and stages its job, in one transaction for each.

    python -m docsearch.application LIMIT

needs DRAIN_DATABASE_URL, DOCSEARCH_INDEX and DOCSEARCH_JOURNAL. Of this example, only `save` is what an application
needs to use job-drain.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep, time

import sqlalchemy
from sqlalchemy.orm import Session

from docsearch import corpus, store
from docsearch.corpus import Entry
from docsearch.index import Index
from docsearch.jobs import index_document
from docsearch.journal import JournalWriter, Transaction
from docsearch.store import Document

# Upper bound of the documents that wait for workers: so few that the time from commit to start is the delivery's, and
# not the waiting time in a queue that a fast application fills faster than the workers empty it.
UNDER_WAY = 4
# Timeout for a free place among them.
_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 0.001
# Seed of the choice of refused documents, the same in each run.
_SEED = 20


def save(
    engine: sqlalchemy.Engine, entry: Entry, *, refuse: bool, before_the_end: Callable[[], None]
) -> Transaction:
    """Save one document and stage its job, in one transaction.

    Args:
        engine: Engine of the store.
        entry: Document to save.
        refuse: Roll back at the end, as an application does after an error.
        before_the_end: Called after all rows have been inserted, before the commit or rollback.
    """
    with Session(engine) as session:
        document = Document(name=entry.name, text=entry.text)
        session.add(document)
        session.flush()
        index_document.stage(session, document.id)
        document_id = document.id
        before_the_end()
        ended_at = time()
        if refuse:
            session.rollback()
        else:
            session.commit()
    return Transaction(document_id, entry.name, not refuse, ended_at)


def choose_refused(count: int) -> set[int]:
    """Choose one random position out of each ten, the same ones in each run."""
    chance = random.Random(_SEED)
    return {start + chance.randrange(10) for start in range(0, count - 9, 10)}


class Pace:
    """Brake of the application, while too many of its documents wait for workers.

    Args:
        index: Index, which counts the runs of jobs.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self.committed = 0

    def wait(self) -> None:
        """Return once fewer documents wait, or after a second: staging never depends on the workers."""
        deadline = monotonic() + _PATIENCE_SECONDS
        while self.committed - self._index.count_runs() >= UNDER_WAY and monotonic() < deadline:
            sleep(_LOOK_SECONDS)


def save_all(engine: sqlalchemy.Engine, entries: list[Entry], journal: JournalWriter, pace: Pace) -> None:
    """Save all documents, except for one in ten that is rolled back."""
    refused = choose_refused(len(entries))
    for position, entry in enumerate(entries):
        refuse = position in refused
        if not refuse:
            pace.wait()
        # A transaction that is rolled back waits after its inserts, so that the enqueuer scans meanwhile.
        transaction = save(engine, entry, refuse=refuse, before_the_end=pace.wait if refuse else _go_on)
        journal.record(transaction)
        pace.committed += transaction.committed


def _go_on() -> None:
    """Wait for nothing."""


def main(limit: int) -> None:
    """Save up to `limit` documents."""
    entries = corpus.entries(limit)
    engine = store.engine(os.environ["DRAIN_DATABASE_URL"])
    journal = JournalWriter(Path(os.environ["DOCSEARCH_JOURNAL"]), expected=len(entries))
    with closing(journal), closing(Index(Path(os.environ["DOCSEARCH_INDEX"]))) as index:
        save_all(engine, entries, journal, Pace(index))
    engine.dispose()


if __name__ == "__main__":
    main(int(sys.argv[1]))
