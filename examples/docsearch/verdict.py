"""The verdict: computed from what the two stores hold, and from what the application says it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import quantiles

from docsearch.corpus import Entry
from docsearch.index import Index, Run
from docsearch.journal import Transaction
from drain.database.postgres import Connection

_DOCUMENTS = "SELECT id, name, text FROM documents"
_ENOUGH_TO_DIVIDE = 2
_EXECUTED = "SELECT (job_args ->> 0)::bigint FROM finished_jobs"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the documents.

    Attributes:
        committed: Documents in the store.
        rolled_back: Transactions that the application has rolled back.
        executed: Jobs that ended well, by job-drain's own books.
        ran_twice: Documents whose job ran more than once. That is allowed, where a worker died.
        lost: Committed documents that the index does not hold, or holds with another text.
        ran_without_commit: Ids for which something ran, or was indexed, and that no commit has saved.
        commit_to_start: Of each job that ran, the seconds from asking for the commit to its first line.
    """

    committed: int
    rolled_back: int
    executed: int
    ran_twice: int
    lost: tuple[int, ...]
    ran_without_commit: tuple[int, ...]
    commit_to_start: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was lost and nothing ran without a commit."""
        return not self.lost and not self.ran_without_commit

    @property
    def exit_code(self) -> int:
        """0 if it holds, 1 if it does not."""
        return 0 if self.holds else 1

    def commit_to_start_ms(self, percent: int) -> float | None:
        """The percentile in milliseconds; None if too few jobs ran to tell."""
        if len(self.commit_to_start) < _ENOUGH_TO_DIVIDE:
            return None
        return quantiles(self.commit_to_start, n=100, method="inclusive")[percent - 1] * 1000


def compare(store: Connection, index: Index, journal: Iterable[Transaction]) -> Verdict:
    """Compare the stores with each other, text by text, and both with the journal.

    Args:
        store: A connection to the database of the documents.
        index: The index.
        journal: What the application says of its transactions.
    """
    transactions = list(journal)
    saved = _documents(store)
    indexed = index.documents()
    runs = index.runs()
    executed = [document_id for (document_id,) in store.execute(_EXECUTED)]
    committed = {each.document_id for each in transactions if each.committed}
    # A commit that one witness knows of is a commit: the store, or the application that was told so.
    expected = saved.keys() | committed
    times_run = Counter(run.document_id for run in runs)
    return Verdict(
        committed=len(saved),
        rolled_back=sum(not each.committed for each in transactions),
        executed=len(executed),
        ran_twice=sum(times > 1 for times in times_run.values()),
        lost=tuple(sorted(id_ for id_ in expected if id_ not in saved or indexed.get(id_) != saved[id_])),
        ran_without_commit=tuple(sorted({*indexed, *times_run, *executed} - expected)),
        commit_to_start=_commit_to_start(transactions, runs),
    )


def _documents(store: Connection) -> dict[int, Entry]:
    rows = store.execute(_DOCUMENTS)
    return {id_: Entry(name, text) for id_, name, text in rows}


def _commit_to_start(transactions: list[Transaction], runs: list[Run]) -> tuple[float, ...]:
    started: dict[int, float] = {}
    for run in runs:
        started.setdefault(run.document_id, run.started_at)
    return tuple(
        started[each.document_id] - each.ended_at
        for each in transactions
        if each.committed and each.document_id in started
    )
