"""What the application says of its transactions, in a file of its own: one JSON object a line.

The verdict needs a witness other than the two stores. Of a transaction that was rolled back, the
database knows nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction that has ended.

    Attributes:
        document_id: Id of the document that it saved.
        name: Name of that document.
        committed: False if it was rolled back, on purpose.
        ended_at: When the application asked for the commit, in seconds since the epoch.
    """

    document_id: int
    name: str
    committed: bool
    ended_at: float


class JournalWriter:
    """Appends to the journal; each line is written out at once.

    Args:
        path: The file.
        expected: How many transactions there will be.
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
    """Follows a journal that another process writes.

    Args:
        path: The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_up_to = 0
        self._unfinished = ""
        self.expected: int | None = None
        self.transactions: list[Transaction] = []

    def read(self) -> None:
        """Read what has been written since the last time."""
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
