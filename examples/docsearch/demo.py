"""Runner of the example, `drain demo`: starts all processes, watches and ends them, and reports the verdict."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

from programs.processes import Processes, ended_by_sigterm

from docsearch import index, store
from docsearch.index import Index
from docsearch.journal import JournalReader, Transaction
from docsearch.progress import Figures, Show
from docsearch.report import Report, Result
from docsearch.verdict import compare
from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.embedded import Services, services
from drain.errors import DrainError
from drain.read import system

# Upper bound of the documents to save, by default.
DOCUMENTS = 10_000
_SEARCH = "open file encoding"
_HITS = 5
# Timeout for the next job to finish.
_STANDSTILL_SECONDS = 60.0
_LOOK_SECONDS = 0.25
_SERVERS = ("enqueuer", "worker 1", "worker 2")
# Exit code after Ctrl-C.
_INTERRUPTED = 130
_MODULES = Path(__file__).parents[1]


def main(*, as_json: bool, limit: int = DOCUMENTS) -> int:
    """Run the example.

    Args:
        as_json: Print one line of JSON instead of tables.
        limit: Upper bound of the documents to save.

    Returns:
        The exit code: 0; 1 if a document was lost, a job ran without a commit, or the example failed;
        130 after Ctrl-C.
    """
    # After Ctrl-C within a transaction it would warn of a rollback that the end of the server makes needless.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    report = Report(as_json=as_json)
    try:
        with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="docsearch-") as directory:
            return _Demonstration(report, Path(directory)).run(limit)
    except DrainError as error:
        report.error(str(error))
        return 1
    except KeyboardInterrupt:
        report.error("interrupted; all processes have ended")
        return _INTERRUPTED


class _Demonstration:
    """One run of the example, with all of its files in one directory."""

    def __init__(self, report: Report, directory: Path) -> None:
        self._report = report
        self._directory = directory
        self._index_path = directory / "index.sqlite3"
        self._journal_path = directory / "journal.jsonl"
        self._journal = JournalReader(self._journal_path)

    def run(self, limit: int) -> int:
        """Run everything, from the first process to the verdict; returns the exit code."""
        began = monotonic()
        self._report.say("Starting PostgreSQL, Redis, an enqueuer, two workers and an application ...")
        # The example does not crash the machine, so PostgreSQL need not fsync.
        with services(durable=False) as servers:
            _create_stores(servers.database_url, self._index_path)
            connection = postgres.connect(servers.database_url, "drain demo")
            with closing(connection), postgres.reachable(servers.database_url):
                with Processes(self._directory, self._variables(servers), [_MODULES]) as processes:
                    _start(processes, limit)
                    with self._report.progress() as show:
                        self._watch(processes, connection, show)
                # After the processes have ended, so that nothing changes any more.
                return self._conclude(connection, began)

    def _variables(self, servers: Services) -> dict[str, str]:
        return {
            "DRAIN_DATABASE_URL": servers.database_url,
            "DRAIN_REDIS_URL": servers.redis_url,
            "DRAIN_JOBS": "docsearch.jobs",
            "DOCSEARCH_INDEX": str(self._index_path),
            "DOCSEARCH_JOURNAL": str(self._journal_path),
        }

    def _watch(self, processes: Processes, connection: Connection, show: Show) -> None:
        """Return once the application has ended and every job has finished.

        Raises:
            DrainError: A process ended, or no job has finished for a minute.
        """
        indexed, deadline = 0, monotonic() + _STANDSTILL_SECONDS
        while True:
            # Checked before the counts: once the application has ended, they include all of its jobs and transactions.
            all_saved = processes.has_ended("application")
            processes.check(*_SERVERS)
            status = system.read(connection, with_finished=True)
            self._journal.read()
            show(_figures(self._journal, status))
            if all_saved and not status.total("staged") and not status.total("inflight"):
                return
            if status.finished > indexed:
                indexed, deadline = status.finished, monotonic() + _STANDSTILL_SECONDS
            elif monotonic() > deadline:
                raise _standstill(status, processes)
            sleep(_LOOK_SECONDS)

    def _conclude(self, connection: Connection, began: float) -> int:
        transactions = self._journal.transactions
        with closing(Index(self._index_path)) as searched:
            verdict = compare(connection, searched, transactions)
            hits = searched.search(_SEARCH, _HITS)
            absent = _some_absent(transactions, searched)
        self._report.conclude(Result(verdict, monotonic() - began, _SEARCH, hits, absent))
        return verdict.exit_code


def _create_stores(database_url: str, index_path: Path) -> None:
    schema.install(database_url)
    store.create(database_url)
    index.create(index_path)


def _start(processes: Processes, limit: int) -> None:
    processes.module("application", "docsearch.application", str(limit))
    processes.drain("enqueuer", "run", "--metrics-port", "0")
    processes.drain("worker 1", "work", "index")
    processes.drain("worker 2", "work", "index")


def _figures(journal: JournalReader, status: system.System) -> Figures:
    return Figures(
        expected=journal.expected,
        saved=len(journal.transactions),
        committed=sum(each.committed for each in journal.transactions),
        drained=status.total("inflight") + status.finished + status.total("dead"),
        indexed=status.finished,
    )


def _some_absent(transactions: Sequence[Transaction], searched: Index) -> list[str]:
    """Choose the public names of two rolled-back documents, which a search does not find."""
    found = {entry.name for entry in searched.documents().values()}
    rolled_back = (each.name for each in transactions if not each.committed)
    names = [name for name in rolled_back if name not in found and "_" not in name]
    return names[:: max(1, len(names) // 2)][:2]


def _standstill(status: system.System, processes: Processes) -> DrainError:
    suspect = "enqueuer" if status.total("staged") else "worker 1"
    return DrainError(
        f"no job has finished for {_STANDSTILL_SECONDS:g} s: {status.total('staged')} are staged, "
        f"{status.total('inflight')} in flight, {status.total('dead')} dead; "
        f"the log of the {suspect} ends: {processes.last_lines(suspect)}"
    )
