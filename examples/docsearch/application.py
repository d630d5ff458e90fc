"""The application: saves each document in a transaction of its own, together with its staged job.

    python -m docsearch.application LIMIT

needs DRAIN_DATABASE_URL, DOCSEARCH_INDEX and DOCSEARCH_JOURNAL. This is the only module here that
does what an application has to do to use job-drain, and `save` is all of it.
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

# So few documents may wait for their workers at a time that the time from commit to start is that
# of the delivery, and not that of a queue which a fast application piles up before slow workers.
UNDER_WAY = 4
_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 0.001
_SEED = 20


def save(
    engine: sqlalchemy.Engine, entry: Entry, *, refuse: bool, before_the_end: Callable[[], None]
) -> Transaction:
    """Save one document and stage its job, in one transaction.

    Args:
        engine: Of the store.
        entry: What to save.
        refuse: Roll back in the end, as an application does that comes upon an error.
        before_the_end: Called after everything has been inserted, before the commit or rollback.
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
    """One position out of each ten, the same ones each time, and no telling which."""
    chance = random.Random(_SEED)
    return {start + chance.randrange(10) for start in range(0, count - 9, 10)}


class Pace:
    """Holds the application back while too many of its documents are under way.

    Args:
        index: Tells how many have been worked.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self.committed = 0

    def wait(self) -> None:
        """Return once there is room, or after a second: staging never depends on the workers."""
        deadline = monotonic() + _PATIENCE_SECONDS
        while self.committed - self._index.count_runs() >= UNDER_WAY and monotonic() < deadline:
            sleep(_LOOK_SECONDS)


def save_all(engine: sqlalchemy.Engine, entries: list[Entry], journal: JournalWriter, pace: Pace) -> None:
    """Save all of the documents, but for the one in ten that is refused."""
    refused = choose_refused(len(entries))
    for position, entry in enumerate(entries):
        refuse = position in refused
        if not refuse:
            pace.wait()
        # One that will be rolled back waits with its job inserted, and lets the enqueuer pass by.
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
