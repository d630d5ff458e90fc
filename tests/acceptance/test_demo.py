"""The example behind `drain demo`: with real processes, and with its verdict put to the proof."""

import json
import os
import pydoc
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from docsearch import (  # noqa: E402
    application,
    corpus,
    demo,
    index,
    jobs,
    journal,
    report,
    store,
    verdict,
)
from docsearch.corpus import Entry  # noqa: E402
from programs import processes  # noqa: E402

from drain.database.postgres import Connection  # noqa: E402
from drain.errors import DrainError  # noqa: E402
from tests.marked import (  # noqa: E402
    marked,
    on_linux,
    processes as running,
)

pytestmark = pytest.mark.embedded

PATIENCE_SECONDS = 60
DEMO = "import sys; from docsearch.demo import main; sys.exit(main(as_json=False))"

STUBBORN = """
import os, signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
print("ready", flush=True)
signal.pause()
"""
OWNER = """
import signal, sys
from pathlib import Path

from programs import processes

processes._STOP_SECONDS = 0.5
with processes.Processes(Path(sys.argv[1]), {}) as children:
    children.module("stubborn", "stubborn")
    signal.pause()
"""


class Stores:
    """Both stores and a journal, with the application's and the worker's part done in this process."""

    def __init__(self, database_url: str, path: Path) -> None:
        store.create(database_url)
        index.create(path)
        self.engine = store.engine(database_url)
        self.connection = psycopg.connect(database_url, autocommit=True)
        self.index = index.Index(path)
        self.journal: list[journal.Transaction] = []

    def save(self, name: str, *, refuse: bool = False) -> int:
        transaction = application.save(
            self.engine,
            Entry(name, f"What {name} does."),
            refuse=refuse,
            before_the_end=lambda: None,
        )
        self.journal.append(transaction)
        return transaction.document_id

    def verdict(self) -> verdict.Verdict:
        return verdict.compare(self.connection, self.index, self.journal)

    def close(self) -> None:
        self.index.close()
        self.connection.close()
        self.engine.dispose()


@pytest.fixture
def stores(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    with closing(Stores(database_url, tmp_path / "index.sqlite3")) as both:
        monkeypatch.setattr(jobs, "_engine", lambda: both.engine)
        monkeypatch.setattr(jobs, "_index", lambda: both.index)
        yield both


def test_a_small_run_loses_nothing_and_runs_nothing_that_was_rolled_back(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = demo.main(as_json=True, limit=200)
    (line,) = capfd.readouterr().out.splitlines()
    result = json.loads(line)
    assert code == 0
    assert result["committed"] == result["executed"] == 180
    assert result["rolled_back"] == 20
    assert result["lost"] == result["ran_without_commit"] == result["ran_twice"] == 0
    assert 0 < result["commit_to_start_p50_ms"] <= result["commit_to_start_p99_ms"]


def test_a_document_that_vanishes_from_the_index_makes_the_whole_run_fail(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare_after_sabotage(
        connection: Connection, searched: index.Index, transactions: list[journal.Transaction]
    ) -> verdict.Verdict:
        searched.remove(next(each.document_id for each in transactions if each.committed))
        return verdict.compare(connection, searched, transactions)

    monkeypatch.setattr(demo, "compare", compare_after_sabotage)
    assert demo.main(as_json=False, limit=20) == 1
    assert "The promise was broken" in capfd.readouterr().out


def test_the_verdict_holds_when_each_committed_document_is_indexed(stores: Stores) -> None:
    for name in ("json.dumps", "json.loads"):
        jobs.index_document(stores.save(name))
    stores.save("os.remove", refuse=True)
    found = stores.verdict()
    assert (found.committed, found.rolled_back, found.exit_code) == (2, 1, 0)
    assert (found.lost, found.ran_without_commit, found.ran_twice) == ((), (), 0)
    assert "all 2 committed documents" in report.sentence(found)


def test_a_document_that_is_missing_from_the_index_is_lost(stores: Stores) -> None:
    document_id = stores.save("json.dumps")
    jobs.index_document(document_id)
    stores.index.remove(document_id)
    assert stores.verdict().lost == (document_id,)
    assert stores.verdict().exit_code == 1
    assert f"(ids {document_id})" in report.sentence(stores.verdict())


def test_a_document_that_is_indexed_with_another_text_is_lost(stores: Stores) -> None:
    document_id = stores.save("json.dumps")
    stores.index.write(document_id, Entry("json.dumps", "Something else."), started_at=time.time())
    assert stores.verdict().lost == (document_id,)


def test_a_commit_known_only_to_the_application_counts_as_lost(stores: Stores) -> None:
    document_id = stores.save("json.dumps")
    jobs.index_document(document_id)
    stores.connection.execute("DELETE FROM documents")
    found = stores.verdict()
    assert (found.lost, found.ran_without_commit) == ((document_id,), ())


def test_a_foreign_document_in_the_index_ran_without_a_commit(stores: Stores) -> None:
    jobs.index_document(stores.save("json.dumps"))
    stores.index.write(999, Entry("os.remove", "Nobody has saved this."), started_at=time.time())
    found = stores.verdict()
    assert (found.lost, found.ran_without_commit, found.exit_code) == ((), (999,), 1)


def test_a_job_that_runs_for_a_rolled_back_document_leaves_a_trace(stores: Stores) -> None:
    document_id = stores.save("os.remove", refuse=True)
    jobs.index_document(document_id)
    assert stores.index.documents() == {}
    assert stores.verdict().ran_without_commit == (document_id,)


def test_a_job_that_runs_twice_is_counted_and_changes_nothing(stores: Stores) -> None:
    document_id = stores.save("json.dumps")
    jobs.index_document(document_id)
    jobs.index_document(document_id)
    found = stores.verdict()
    assert (found.ran_twice, found.exit_code) == (1, 0)
    assert list(stores.index.documents()) == [document_id]


def test_a_rolled_back_document_takes_its_job_and_its_id_with_it(stores: Stores) -> None:
    refused = stores.save("os.remove", refuse=True)
    saved = stores.save("json.dumps")
    staged = stores.connection.execute("SELECT job_args ->> 0 FROM staged_jobs").fetchall()
    assert saved > refused
    assert staged == [(str(saved),)]


def test_the_application_rolls_back_one_in_ten() -> None:
    refused = application.choose_refused(1000)
    assert {position // 10 for position in refused} == set(range(100))
    assert len(refused) == 100
    assert len({position % 10 for position in refused}) == 10


def test_the_corpus_is_reproducible_and_matches_pydoc() -> None:
    some, everything = corpus.entries(500), corpus.entries(1_000_000)
    by_name = dict(everything)
    assert len(by_name) == len(everything) > 5000
    assert len(some) == 500
    chosen = set(some)
    assert some == [entry for entry in everything if entry in chosen]
    assert by_name["json.dumps"] in pydoc.render_doc("json.dumps").replace("\n    ", "\n")


def test_a_search_finds_all_of_its_words_and_marks_them(stores: Stores) -> None:
    for name in ("json.dumps", "json.loads"):
        jobs.index_document(stores.save(name))
    (hit,) = stores.index.search('what "dumps', 5)
    assert hit.name == "json.dumps"
    assert hit.marked == "\x02What\x03 json.\x02dumps\x03 does."


def test_a_journal_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    reader = journal.JournalReader(path)
    reader.read()
    assert reader.transactions == []
    transaction = journal.Transaction(7, "json.dumps", committed=True, ended_at=1.5)
    with closing(journal.JournalWriter(path, expected=2)) as writer:
        writer.record(transaction)
    whole = path.read_text()
    path.write_text(whole[:-5])
    reader.read()
    assert (reader.expected, reader.transactions) == (2, [])
    path.write_text(whole)
    reader.read()
    assert reader.transactions == [transaction]


def test_the_death_of_a_process_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "mortal.py").write_text("import sys; sys.exit('out of ink')")
    told = "the scribe ended with exit code 1; its log ends: out of ink"
    with processes.Processes(tmp_path, {"PYTHONPATH": str(tmp_path)}) as children:
        children.module("scribe", "mortal")
        with pytest.raises(DrainError, match=told):
            _eventually(lambda: children.has_ended("scribe"))


def test_a_standstill_ends_the_run_and_says_where_the_jobs_are(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_on_the_wrong_queue(children: processes.Processes, limit: int) -> None:
        children.module("application", "docsearch.application", str(limit))
        children.drain("enqueuer", "run", "--metrics-port", "0")
        children.drain("worker 1", "work", "elsewhere")

    monkeypatch.setattr(demo, "_start", start_on_the_wrong_queue)
    monkeypatch.setattr(demo, "_SERVERS", ("enqueuer", "worker 1"))
    monkeypatch.setattr(demo, "_STANDSTILL_SECONDS", 0.5)
    assert demo.main(as_json=True, limit=20) == 1
    output, error = capfd.readouterr()
    assert output == ""
    assert error.startswith("Error: no job has finished for 0.5 s: ")


@on_linux
def test_ctrl_c_ends_every_process() -> None:
    with _running_demo() as (process, left):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 130
        assert errors == "Error: interrupted; all processes have ended\n"
        assert left() == []


@on_linux
def test_no_process_outlives_a_demo_that_is_killed() -> None:
    with _running_demo() as (process, left):
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
        _eventually(lambda: left() == [])


@on_linux
def test_a_process_that_ignores_sigterm_is_killed_once_its_owner_is(tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    log = tmp_path / "stubborn.log"
    marker = f"STUBBORN_TEST={uuid4()}"
    name, _, value = marker.partition("=")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), str(tmp_path)]), name: value}
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], env=environment) as owner:
        try:
            # The process that the first one has forked ignores the signal too.
            _eventually(lambda: log.exists() and log.read_text().count("ready") == 2)
        finally:
            owner.kill()
    _eventually(lambda: marked(marker) == [])


@contextmanager
def _running_demo() -> Iterator[tuple[subprocess.Popen[str], Callable[[], list[str]]]]:
    """A demo whose processes are all at work, and a look at the command lines of those that run."""
    marker = f"DOCSEARCH_TEST={uuid4()}"
    name, _, value = marker.partition("=")
    with subprocess.Popen(
        [sys.executable, "-c", DEMO],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES), name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            # Each of the two workers is a supervisor and what it has forked.
            _eventually(lambda: sum(" work index" in line for line in marked(marker)) >= 4)
            files = _files_of_the_demo(marker)
            yield process, lambda: marked(marker)
        finally:
            process.kill()
    # A demo that is killed cannot remove them itself.
    shutil.rmtree(files, ignore_errors=True)


def _files_of_the_demo(marker: str) -> Path:
    variables = next(found for command, found in running() if marker in found and " work index" in command)
    return next(Path(each.partition("=")[2]) for each in variables if "DOCSEARCH_INDEX" in each).parent


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
