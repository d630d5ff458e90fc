"""Second store, which can be rebuilt from the first: SQLite's full text search, FTS5.

A log next to the index has one row for each run of a job, which shows jobs that ran twice, or for a document that does
not exist.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from docsearch.corpus import Entry
from drain.errors import DrainError

# Timeout for the lock of the file, which another worker holds for about a millisecond to write.
_BUSY_SECONDS = 10.0

_CREATE = """
PRAGMA journal_mode = WAL;
CREATE VIRTUAL TABLE documents USING fts5 (name, text, tokenize = 'porter unicode61');
CREATE TABLE runs (id INTEGER PRIMARY KEY, document_id INTEGER NOT NULL, started_at REAL NOT NULL);
"""
_RUN = "INSERT INTO runs (document_id, started_at) VALUES (?, ?)"
_REMOVE = "DELETE FROM documents WHERE rowid = ?"
_INSERT = "INSERT INTO documents (rowid, name, text) VALUES (?, ?, ?)"
# A match in the name has four times the weight of a match in the text.
_SEARCH = """
SELECT name, text, highlight(documents, 1, char(2), char(3))
FROM documents WHERE documents MATCH ? ORDER BY bm25(documents, 4.0, 1.0), rowid LIMIT ?
"""


class Hit(NamedTuple):
    """Document that a search found; `marked` is its text with matches between U+0002 and U+0003."""

    name: str
    text: str
    marked: str


class Run(NamedTuple):
    """Run of the job of a document by a worker."""

    document_id: int
    started_at: float


class Index:
    """Connection to the index.

    Args:
        path: Path of the file, which `create` has made.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        # The index can be rebuilt, so a crash of the machine may lose its last rows.
        self._connection.execute("PRAGMA synchronous = OFF")

    def write(self, document_id: int, entry: Entry | None, *, started_at: float) -> None:
        """Bring one document up to date, and log the run; repeating it changes no document.

        Args:
            document_id: Id of the document.
            entry: Name and text of the document; None if there is no such document.
            started_at: Start of the job, in seconds since the epoch.
        """
        # IMMEDIATE waits here for another writer; a transaction that first reads and then writes would fail instead.
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            self._connection.execute(_RUN, (document_id, started_at))
            self._connection.execute(_REMOVE, (document_id,))
            if entry is not None:
                self._connection.execute(_INSERT, (document_id, *entry))

    def remove(self, document_id: int) -> None:
        """Remove one document."""
        self._connection.execute(_REMOVE, (document_id,))

    def documents(self) -> dict[int, Entry]:
        """Read all documents, by id."""
        rows = self._connection.execute("SELECT rowid, name, text FROM documents")
        return {document_id: Entry(name, text) for document_id, name, text in rows}

    def runs(self) -> list[Run]:
        """Read all runs, in the order in which they ended."""
        rows = self._connection.execute("SELECT document_id, started_at FROM runs ORDER BY id")
        return [Run._make(row) for row in rows]

    def count_runs(self) -> int:
        """Count the runs that have ended."""
        (count,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM runs").fetchone()
        return int(count)

    def search(self, words: str, limit: int) -> list[Hit]:
        """Find the documents that contain all of the words, the best match first."""
        query = " ".join(f'"{word}"' for word in words.replace('"', " ").split())
        return [Hit._make(row) for row in self._connection.execute(_SEARCH, (query, limit))]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def create(path: Path) -> None:
    """Make an empty index.

    Raises:
        DrainError: SQLite was built without full text search.
    """
    with closing(sqlite3.connect(path)) as connection:
        try:
            connection.executescript(_CREATE)
        except sqlite3.OperationalError as error:
            raise DrainError(f"the index cannot be created in SQLite: {error}") from None
