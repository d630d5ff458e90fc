"""Verdict of the example, computed from the two stores and from the application's journal."""

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
    """Outcome for all documents.

    Attributes:
        committed: Number of documents in the store.
        rolled_back: Number of transactions that the application has rolled back.
        executed: Number of jobs that finished, by job-drain's tables.
        ran_twice: Number of documents whose job ran more than once, which is allowed if a worker died.
        lost: Ids of committed documents that the index lacks, or has with another text.
        ran_without_commit: Ids for which a job ran, or that are in the index, without a committed document.
        commit_to_start: Seconds from asking for the commit to the job's first line, of each job that ran.
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
        """True if no document was lost and no job ran without a commit."""
        return not self.lost and not self.ran_without_commit

    @property
    def exit_code(self) -> int:
        """Exit code of the example: 0 if the verdict holds, 1 if it does not."""
        return 0 if self.holds else 1

    def commit_to_start_ms(self, percent: int) -> float | None:
        """Compute a percentile in milliseconds; None if fewer than two jobs ran."""
        if len(self.commit_to_start) < _ENOUGH_TO_DIVIDE:
            return None
        return quantiles(self.commit_to_start, n=100, method="inclusive")[percent - 1] * 1000


def compare(store: Connection, index: Index, journal: Iterable[Transaction]) -> Verdict:
    """Compare the stores with each other, text by text, and both with the journal.

    Args:
        store: Connection to the database of the documents.
        index: Index.
        journal: Transactions by the application's own record.
    """
    transactions = list(journal)
    saved = _documents(store)
    indexed = index.documents()
    runs = index.runs()
    executed = [document_id for (document_id,) in store.execute(_EXECUTED)]
    committed = {each.document_id for each in transactions if each.committed}
    # A document is committed if the store has it, or if the commit was confirmed to the application.
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
