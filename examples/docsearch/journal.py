"""Journal of the application's transactions, in a file of its own: one JSON object a line.

The verdict needs a third record: the database has no trace of a transaction that was rolled back.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Transaction:
    """Transaction that has ended.

    Attributes:
        document_id: Id of the document that it saved.
        name: Name of that document.
        committed: False if it was rolled back, on purpose.
        ended_at: Time when the application asked for the commit or rollback, in seconds since the epoch.
    """

    document_id: int
    name: str
    committed: bool
    ended_at: float


class JournalWriter:
    """Writer of the journal; each line is written at once.

    Args:
        path: Path of the file.
        expected: Number of transactions that will be recorded.
    """

    def __init__(self, path: Path, expected: int) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._write({"expected": expected})

    def record(self, transaction: Transaction) -> None:
        """Append one transaction."""
        self._write(asdict(transaction))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")


class JournalReader:
    """Reader of a journal that another process writes.

    Args:
        path: Path of the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_up_to = 0
        self._unfinished = ""
        self.expected: int | None = None
        self.transactions: list[Transaction] = []

    def read(self) -> None:
        """Read the lines that were written since the last call."""
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8", newline="\n") as file:
            file.seek(self._read_up_to)
            *lines, self._unfinished = (self._unfinished + file.read()).split("\n")
            self._read_up_to = file.tell()
        for line in map(json.loads, lines):
            if "expected" in line:
                self.expected = line["expected"]
            else:
                self.transactions.append(Transaction(**line))
