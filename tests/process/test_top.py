"""`drain top` on a real terminal: it redraws, hears keys, survives outages, and leaves the terminal as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from drain.__main__ import main
from drain.database import postgres
from drain.embedded import Services
from drain.read import queue as queue_numbers, queues, system
from drain.tables import claims, finishes
from drain.tables.waiting import DUE_RETRIES
from tests.helpers import (
    DRAIN,
    ROOT,
    environment,
    new_enqueuer,
    query,
    stage_jobs,
    wait_until,
)
from tests.hostility import Place

# Sequences by which a program changes to a screen of its own, and back; and hides the cursor, and shows it.
ENTER, LEAVE, SHOW = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


class Screen:
    """A terminal, the program that draws on it, and all that it has drawn so far."""

    def __init__(self, env: dict[str, str], *words: str, size: tuple[int, int]) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(size)
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.drawn = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRAIN, "top", "--every", "0.2", *words],
            env={name: text for name, text in env.items() if name not in ("LINES", "COLUMNS")}
            | {"TERM": "xterm"},
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )

    def resize(self, size: tuple[int, int]) -> None:
        columns, lines = size
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read(self) -> bytes:
        while select.select([self._ours], [], [], 0)[0]:
            with suppress(OSError):
                if data := os.read(self._ours, 65_536):
                    self.drawn += data
                    continue
            break
        return self.drawn

    def shows(self, text: str) -> None:
        """Wait until the latest screen shows this text."""
        wait_until(lambda: text in self.latest())

    def latest(self) -> str:
        """Text of the latest screen, which begins where the cursor goes home."""
        screens = self.read().split(b"\x1b[H")
        whole = [
            screen
            for screen in screens
            if b"sort by" in screen or b"looking at" in screen or b"\x1b[31m" in screen
        ]
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", whole[-1].decode(errors="replace")) if whole else ""

    def ends(self) -> int:
        """Wait for the end; the terminal is as it was before."""
        wait_until(lambda: (self.read(), self.process.poll())[1] is not None)
        drawn = self.read()
        assert termios.tcgetattr(self._theirs) == self.before
        assert drawn.count(ENTER) == drawn.count(LEAVE) == 1
        assert drawn.rindex(LEAVE) > drawn.rindex(ENTER)
        assert SHOW in drawn
        assert b"Traceback" not in drawn
        return int(self.process.returncode)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def screen(env: dict[str, str], *words: str, size: tuple[int, int] = (80, 24)) -> Iterator[Screen]:
    made = Screen(env, *words, size=size)
    try:
        yield made
    except BaseException as error:
        error.add_note(f"drawn so far:\n{made.read().decode(errors='replace')[-3000:]!r}")
        raise
    finally:
        made.close()


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    return environment(database_url, redis_url)


@pytest.mark.usefixtures("processes")
def test_the_screen_redraws_handles_keys_and_restores_the_terminal(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    stage_jobs(database_url, 3, queue="mail")
    stage_jobs(database_url, 7, queue="zoo")
    with screen(env) as shown:
        shown.shows("10 due")
        assert shown.latest().index("\nzoo") < shown.latest().index("\nmail")
        shown.press("n")
        wait_until(lambda: shown.latest().index("\nmail") < shown.latest().index("\nzoo"))
        with new_enqueuer(database_url, redis_url) as enqueuer:
            enqueuer.drain()
        shown.shows("10 queued")
        shown.press("p")
        shown.shows("PAUSED  q quit  p resume")
        stage_jobs(database_url, 5, queue="mail")
        shown.press("w")
        wait_until(lambda: shown.latest().index("\nzoo") < shown.latest().index("\nmail"))
        assert "10 queued" in shown.latest()
        # A paused screen keeps its curves.
        assert "█" in shown.latest()
        shown.press("p")
        shown.shows("5 list full, 10 queued")
        # An arrow is no key.
        shown.press("\x1b[A")
        shown.resize((50, 10))
        wait_until(lambda: "per min  dead" not in shown.latest() and "q quit" in shown.latest())
        shown.press("q")
        assert shown.ends() == 0


@pytest.mark.parametrize(("how", "code"), [("\x03", 0), (signal.SIGTERM, -signal.SIGTERM)])
@pytest.mark.usefixtures("processes")
def test_ctrl_c_and_sigterm_restore_the_terminal(env: dict[str, str], how: Any, code: int) -> None:
    with screen(env) as shown:
        shown.shows("no queue has jobs")
        if isinstance(how, str):
            shown.press(how)
        else:
            shown.process.send_signal(how)
        assert shown.ends() == code


@pytest.mark.usefixtures("processes")
def test_a_database_outage_is_shown_on_a_line_until_it_ends(
    servers: Services, database_url: str, env: dict[str, str]
) -> None:
    ((name,),) = query(database_url, "SELECT current_database()")
    other = servers.postgres.url_of("postgres")
    stage_jobs(database_url, 3)
    with screen(env) as shown:
        shown.shows("3 due")
        query(other, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        query(other, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        wait_until(lambda: "cannot be" in shown.latest())
        assert "3 due" in shown.latest()
        query(other, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        wait_until(lambda: "cannot be" not in shown.latest() and "3 due" in shown.latest())
        shown.press("q")
        assert shown.ends() == 0


@pytest.mark.usefixtures("processes")
def test_q_works_while_the_database_is_unavailable_at_the_start(env: dict[str, str]) -> None:
    with screen(env | {"DRAIN_DATABASE_URL": "postgresql://x:secret@127.0.0.1:1/x"}) as shown:
        shown.shows("cannot be used")
        assert b"secret" not in shown.drawn
        shown.press("q")
        assert shown.ends() == 0


@pytest.mark.usefixtures("processes")
def test_a_missing_schema_is_reported_after_restoring_the_terminal(
    empty_database_url: str, env: dict[str, str]
) -> None:
    with screen(env | {"DRAIN_DATABASE_URL": empty_database_url}) as shown:
        assert shown.ends() == 1
        assert b"Error: the database has no job-drain schema" in shown.drawn.rpartition(LEAVE)[2]


def test_without_a_terminal_the_screen_is_printed_once(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    ids = stage_jobs(database_url, 3)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    with postgres.connect(database_url, "worker") as connection:
        claims.claim(connection, ids[0], worker="shop-1:7:ab", limits={})
    result = CliRunner().invoke(main, ["top"], env=env)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    totals = result.stdout.splitlines()[3].split("  ")
    assert [text.strip() for text in totals if text.strip()] == ["0 per min", "2", "1", "0", "0"]
    assert "q quit" not in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if "shop-1:7" in line]
    assert str(ids[0]) in row.split()
    away = CliRunner().invoke(main, ["top"], env=env | {"DRAIN_REDIS_URL": "redis://127.0.0.1:1/0"})
    assert (away.exit_code, "workers are unknown" in away.stderr) == (0, True)


# --- the questions


def test_the_activity_matches_the_tables(database_url: str, redis_url: str) -> None:
    ids = stage_jobs(database_url, 4)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    with postgres.connect(database_url, "test") as connection:
        held = [claims.claim(connection, job_id, worker="w", limits={}) for job_id in ids[:2]]
        assert held[0] is not None
        assert finishes.finish_once(connection, held[0])
        query(
            database_url,
            "UPDATE inflight_jobs SET claimed_at = now() - interval '1 hour' WHERE id = %s",
            ids[1],
        )
        query(
            database_url,
            "UPDATE inflight_jobs SET staged_at = now() - interval '1 minute', "
            "scheduled_at = now() - interval '1 minute' WHERE id = %s",
            ids[2],
        )
        found = system.read(connection, longest=10)
        nothing_else = connection.info.transaction_status.name
    queue = found.queues["default"]
    assert (queue.waiting, queue.running, queue.waits) == ({"queued": 2}, 1, 2)
    assert round(queue.per_second * queue_numbers.RATE_SECONDS) == 1
    assert 60 <= queue.oldest_seconds < 600
    assert [(job["id"], job["attempt"]) for job in found.running] == [(ids[1], 1)]
    assert found.running[0]["now"] - found.running[0]["claimed_at"] >= timedelta(hours=1)
    assert (found.total("dead"), found.dead_groups, nothing_else) == (0, 0, "IDLE")


def test_dead_jobs_are_grouped_by_name_reason_and_error(database_url: str) -> None:
    statement = """INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at,
        last_error, reason, explanation)
        SELECT n, 'm.' || n %% 2, '[]', '{}', 'default', 0, now(), now(), jsonb_build_object('type', 'E' || n %% 3),
            'failed', '' FROM generate_series(1, 60) AS n WHERE %s"""
    query(database_url, statement, True)
    with postgres.connect(database_url, "test") as connection:
        found = system.read(connection)
    assert (found.total("dead"), found.dead_groups) == (60, 6)


def test_no_query_scans_a_whole_table(database_url: str) -> None:
    """With many rows, planned after ANALYZE, and with the statistics of an empty table."""
    parameters = {"up_to": 10, "limit": 10, "seconds": 60}
    with postgres.connect(database_url, "test") as connection, connection.transaction():
        connection.execute("SET LOCAL enable_seqscan = off")
        for statement in (
            *(queues._RUNNING, queues._FINISHED, DUE_RETRIES, queues._OLDEST_QUEUED),
            *(queues._LATEST_DEAD, queues._COMING_DUE),
        ):
            plan = connection.execute(f"EXPLAIN {statement}".encode(), parameters).fetchall()
            assert [line for (line,) in plan if "Seq Scan" in line] == []


def test_the_inspection_role_has_sufficient_rights(place: Place, redis_url: str) -> None:
    stage_jobs(place.url, 2)
    result = CliRunner().invoke(main, ["top"], env=environment(place.url_of("inspection"), redis_url))
    assert result.exit_code == 0, result.output
    assert "2 due" in result.stdout


@pytest.mark.parametrize(("more", "has_colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
@pytest.mark.usefixtures("processes")
def test_no_color_is_respected(env: dict[str, str], more: dict[str, str], has_colours: bool) -> None:
    with screen({name: text for name, text in env.items() if name != "NO_COLOR"} | more) as shown:
        shown.shows("No leader")
        shown.press("q")
        assert shown.ends() == 0
        assert bool(re.search(rb"\x1b\[(?:[0-9;]*;)?3[0-7]m", shown.drawn)) is has_colours
