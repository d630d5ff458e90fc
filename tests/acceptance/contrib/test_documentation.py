"""The code of the tutorial, of the how-to pages and of the README runs, page by page, on real servers.

A page is followed as a reader would. A Python block with a title is a file, or is added to one; a Python block without
a title goes on where the one before has ended. The tutorial's commands are typed. After each step the enqueuer and a
worker do what `drain dev` would do meanwhile, so a job that fails is tried again at once.

HTML comments in a page, which no reader sees: `<!-- test: EXPRESSION -->` must be true, and
`<!-- not run: REASON -->` excuses the block below it. A block of the language `text` is what the commands above it
print: lines in this order, beside others, where `…` is any text. Times and durations are not compared.
"""

import io
import json
import logging
import re
import runpy
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

import drain
from drain.__main__ import main
from drain.jobs import registry
from drain.workers.context import log_fields, reporter
from tests import pages
from tests.blocks import use_django_at
from tests.helpers import NAMESPACE, environment, ids_in, new_enqueuer, query
from tests.inprocess_worker import Workshop
from tests.pages import DOCS, README, ROOT, Block

TUTORIAL = DOCS / "tutorial.md"
HOW_TO = sorted((DOCS / "howto").glob("*.md"))
# Runs of a job that is dead at last.
MOST_ATTEMPTS = 20
# For the tests that a page has written: they start several commands, one after the other.
TESTS_SECONDS = 120
# Plugin of an installed job-drain; that of pytest-django is another project's, and wants its settings.
PLUGINS = ("-p", "drain.contrib.testing.plugin", "-p", "no:django")


def comparable(line: str) -> str:
    """A line of output without what differs between two runs: times, durations, the width of columns."""
    line = re.sub(r"\b(now|[\d.]+m?s( ago)?)(?= |$)", "TIME", line)
    return " ".join(line.split())


class Reader:
    """Somebody who does what a page says.

    Args:
        shop: The worker, and the tables.
        redis_url: Where the enqueuer pushes.
        directory: Empty; the current one.
        monkeypatch: Undoes what the page has changed.
    """

    def __init__(
        self, shop: Workshop, redis_url: str, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.shop = shop
        self.printed: list[str] = []
        self._redis_url = redis_url
        self._directory = directory
        self._patch = monkeypatch
        self._page = ModuleType("page")
        self._patch.setitem(sys.modules, "page", self._page)
        self._helpers: dict[str, Callable[..., Any]] = {
            "outcome": self.outcome,
            "ran": self.ran,
            "last_error": self.last_error,
            "rows": self.rows,
            "use_django": self.use_django,
            "explained": self.explained,
            "asked_while_running": self.asked_while_running,
            "logged": self.logged,
            "pytest": self.pytest,
        }

    def follow(self, page: Path, *, types_commands: bool = False) -> int:
        """Do all steps of the page; returns how many there were."""
        steps = [block for block in pages.blocks(page) if block.not_run is None]
        done = 0
        for block in steps:
            try:
                done += self._step(block, page, types_commands=types_commands)
            except BaseException as error:
                error.add_note(f"in the block at {page.relative_to(ROOT)}:{block.line}")
                raise
        return done

    def _step(self, block: Block, page: Path, *, types_commands: bool) -> bool:
        if block.language == "python" and block.title:
            self._write(block)
        elif block.language == "python":
            # As many newlines before it as in the page, so that a traceback names the page's own lines.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, vars(self._page))
            self._drain()
        elif block.language == "sql":
            query(self.shop.database_url, block.text)
        elif block.language == "test":
            scope = vars(self._page) | self._helpers
            assert eval(block.text, scope), block.text
        elif block.language == "sh" and types_commands:
            self.printed.clear()
            for line in pages.shell_lines(block):
                self._type(line)
                self._work()
        elif block.language == "text" and types_commands:
            self._compare(block.text)
        else:
            return False
        return True

    def _write(self, block: Block) -> None:
        name = block.title.removeprefix("added to ")
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if name != block.title else "w") as file:
            file.write(block.text)
        # What was imported is imported again, as by a worker that starts again.
        sys.modules.pop(Path(name).stem, None)
        self._patch.setattr(registry, "_jobs", {})

    def _type(self, line: str) -> None:
        program, *words = shlex.split(line)
        if program == "drain":
            result = CliRunner().invoke(main, words)
            self.printed += map(comparable, result.output.splitlines())
            assert result.exit_code == 0, result.output
        elif program == "python":
            self._patch.setattr(sys, "argv", words)
            runpy.run_path(words[0], run_name="__main__")
        else:
            subprocess.run([program, *words], check=True)

    def _compare(self, text: str) -> None:
        printed = iter(self.printed)
        for line in map(comparable, text.splitlines()):
            pattern = re.escape(line).replace("…", ".*")
            assert any(re.fullmatch(pattern, each) for each in printed), f"{line!r} is not in {self.printed}"

    def _drain(self) -> None:
        with new_enqueuer(self.shop.database_url, self._redis_url) as enqueuer:
            enqueuer.drain()

    def _work(self) -> None:
        for _ in range(MOST_ATTEMPTS):
            self._drain()
            waiting = ids_in(self.shop.database_url, "inflight_jobs")
            for job_id in waiting:
                self.shop.work(job_id)
            if not waiting:
                return
        raise AssertionError(f"jobs {waiting} never end")

    def outcome(self, job: Any, *args: Any) -> str:
        """Deliver one job, try it once; returns what the attempt came to."""
        return self.shop.work(self.shop.deliver(job, *args))

    def ran(self) -> bool:
        """Run all jobs to their end, and those that they let start."""
        for _ in range(MOST_ATTEMPTS):
            with new_enqueuer(self.shop.database_url, self._redis_url) as enqueuer:
                enqueuer.unblock_all()
                enqueuer.drain()
            waiting = ids_in(self.shop.database_url, "inflight_jobs")
            for job_id in waiting:
                self.shop.work(job_id)
            if not waiting:
                return True
        raise AssertionError(f"jobs {waiting} never end")

    def last_error(self, job: Any, *args: Any) -> str:
        """Deliver one job, try it once; returns the type of the exception."""
        job_id = self.shop.deliver(job, *args)
        self.shop.work(job_id)
        return str(self.shop.row(job_id)["last_error"]["type"])

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What the database answers."""
        return query(self.shop.database_url, statement)

    def use_django(self, *models: Any) -> bool:
        """Let Django's default database be that of the jobs, and make the tables of these models."""
        use_django_at(self.shop.database_url)
        from django.db import connection

        with connection.schema_editor() as editor:
            for model in models:
                editor.create_model(model)
        return True

    def explained(self, job_id: int) -> str:
        """Cause for which a job waits while an enqueuer leads."""
        with new_enqueuer(self.shop.database_url, self._redis_url):
            result = CliRunner().invoke(main, ["explain", str(job_id), "--json"])
        assert result.exit_code == 0, result.output
        return str(json.loads(result.stdout)["cause"])

    def asked_while_running(self, ask: Callable[[int], Any], job: Any, *args: Any) -> Any:
        """Deliver one job and try it; returns the last answer about its progress that was given meanwhile."""
        job_id = self.shop.deliver(job, *args)
        answers, has_ended = [], threading.Event()

        def keep_asking() -> None:
            while not has_ended.wait(0.01):
                if drain.progress(job_id) is not None:
                    answers.append(ask(job_id))

        asking = threading.Thread(target=keep_asking)
        asking.start()
        word = self.shop.work(job_id)
        has_ended.set()
        asking.join()
        assert word == "finished"
        return next(answer for answer in reversed(answers) if "attempt" in answer)

    def logged(self, handler: logging.StreamHandler[Any], job: Any, *args: Any) -> str:
        """Deliver one job, try it once; returns its last line in the log."""
        before = handler.setStream(written := io.StringIO())
        self.outcome(job, *args)
        handler.setStream(before or sys.stderr)
        return written.getvalue().splitlines()[-1]

    def pytest(self, *files: str) -> bool:
        """Whether the tests of files that the page has written pass."""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGINS, *files],
            env=environment(self.shop.database_url, self._redis_url, PYTHONPATH=f"{self._directory}:{ROOT}"),
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=TESTS_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return True


@pytest.fixture
def reader(
    shop: Workshop, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in environment(shop.database_url, redis_url).items():
        monkeypatch.setenv(name, text)
    # As in the processes of `drain work`; a job of a page takes a moment only.
    monkeypatch.setattr(reporter, "EVERY_SECONDS", 0.01)
    reporter.report_to(redis_url, NAMESPACE)
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())
    log_fields.install()
    before = set(sys.modules)
    yield Reader(shop, redis_url, tmp_path, monkeypatch)
    reporter.report_to("", NAMESPACE)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_tutorial_can_be_followed(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    assert reader.follow(TUTORIAL, types_commands=True) >= 10
    printed = capsys.readouterr().out
    assert "receipt for order 1" in printed
    assert "invoice for order 1" in printed
    # What it says of the ids, of the rollback, and of the history.
    assert reader.rows("SELECT id, job_name FROM finished_jobs ORDER BY id") == [
        (1, "shop.send_receipt"),
        (3, "shop.send_invoice"),
        (4, "shop.settle"),
        (5, "shop.send_receipt"),
    ]
    assert reader.rows("SELECT customer, settled FROM orders") == [("Ada", True)]
    assert reader.rows("SELECT history IS NOT NULL FROM finished_jobs WHERE id = 3") == [(True,)]


@pytest.mark.parametrize("page", [README, *HOW_TO], ids=lambda page: page.stem)
def test_the_code_in_the_readme_and_how_to_pages_runs(reader: Reader, page: Path) -> None:
    code = [block for block in pages.blocks(page) if block.language == "python" and block.not_run is None]
    assert reader.follow(page) >= len(code)


def test_the_key_how_to_pages_contain_code() -> None:
    with_code = {
        page.stem for page in HOW_TO if any(block.language == "python" for block in pages.blocks(page))
    }
    assert with_code >= {
        "staging",
        "retries-and-dead-jobs",
        "transactions-in-jobs",
        "async",
        "testing-your-jobs",
    }
