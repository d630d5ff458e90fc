"""`drain top`."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from time import monotonic
from typing import NamedTuple

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from drain.config import Settings
from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.formatting import visible
from drain.read import capacity, queries, system
from drain.read.system import System
from drain.terminal.commandline import FiniteRange, settings_options
from drain.terminal.keyboard import reading_keys
from drain.terminal.top_view import CURVES, SORTS, top_view
from drain.wire import Producer

# The screen shows as many as fit.
_LONGEST = 100
# Looks that the curves span.
_SAMPLES = 1_000
_STATEMENT_SECONDS = 10
_LOOK_SECONDS = 20.0
# Pause between looks, as a multiple of their duration.
_PAUSE_FACTOR = 5
# Reaction time to a new size or new numbers.
_TICK_SECONDS = 0.2


class _Seen(NamedTuple):
    """Result of a look, and numbers of all looks."""

    system: System
    samples: Sequence[Sequence[int]]


class _Looker:
    """Poller of both stores, in a thread: keys work while a store is silent.

    Attributes:
        problem: Why `latest` is old or incomplete, if so.
        failure: Makes further looks pointless.
    """

    def __init__(self, settings: Settings, seconds: float) -> None:
        self.latest: _Seen | None = None
        self.problem: str | None = None
        self.looks = 0
        self.failure: BaseException | None = None
        self._settings = settings
        self._seconds = seconds
        self._samples: deque[Sequence[int]] = deque(maxlen=_SAMPLES)
        self._redis = Producer(settings.redis_url, settings.namespace) if settings.redis_url else None

    def start(self) -> None:
        """Start looking."""
        threading.Thread(target=self._run, name="top", daemon=True).start()

    def look_once(self) -> System:
        """Look once.

        Raises:
            DrainError: PostgreSQL or its schema is unavailable.
        """
        with self._connected() as connection:
            return self._look(connection)

    def _run(self) -> None:
        pause = threading.Event()
        try:
            while True:
                try:
                    with self._connected() as connection:
                        while True:
                            began = monotonic()
                            self._look(connection)
                            pause.wait(max(self._seconds, _PAUSE_FACTOR * (monotonic() - began)))
                except UnavailableError as error:
                    self.problem = f"{error}; trying again"
                    self.looks += 1
                    pause.wait(self._seconds)
        except BaseException as error:  # noqa: BLE001
            self.failure = error

    def _look(self, connection: Connection) -> System:
        with postgres.time_limit(connection, _LOOK_SECONDS):
            found = system.read(connection, longest=_LONGEST)
        problem = None
        if self._redis is not None:
            try:
                capacity.add_workers(found.queues, self._redis.crews(list(found.queues)))
            except UnavailableError as error:
                problem = f"{error}; workers are unknown"
        self._samples.append([found.total(name) for name in CURVES])
        self.latest, self.problem, self.looks = _Seen(found, tuple(self._samples)), problem, self.looks + 1
        return found

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        url = self._settings.database_url
        connection = postgres.connect(url, "drain top")
        with closing(connection), postgres.reachable(url):
            with postgres.time_limit(connection, _LOOK_SECONDS):
                postgres.limit_session(
                    connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_STATEMENT_SECONDS
                )
                schema.check(connection)
            yield queries.with_lenient_values(connection)


@click.command("top", short_help="Watch queues and running jobs live.")
@settings_options("database_url", "redis_url", "namespace")
@click.option(
    "--every",
    "seconds",
    type=FiniteRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh interval.",
)
@click.option(
    "--sort",
    type=click.Choice(list(SORTS.values())),
    default="waiting",
    show_default=True,
    help="Initial order of the queues.",
)
def top(settings: Settings, *, seconds: float, sort: str) -> None:
    """Watch queues, why their jobs wait, and the longest-running jobs.

    Throughput is completed jobs over the last minute; ~ marks estimates. Curves begin when top started. Workers are
    free/all; Stalled means that jobs have waited for a minute while none completed. Keys: q quits, p pauses; w, r, o,
    b and n sort by waiting, rate, oldest, busy and name. When piped, prints once.

    \b
    drain top
    drain top --every 5 --sort oldest
    """  # noqa: D301
    console = Console(highlight=False, markup=False)
    looker = _Looker(settings, seconds)
    if not console.is_terminal or console.is_dumb_terminal:
        console.print(top_view(looker.look_once(), console.width, None, sort, None))
        if looker.problem:
            click.echo(visible(looker.problem), err=True)
        return
    looker.start()
    signals: list[int] = []
    try:
        with _ended_by_sigterm(signals):
            _show(console, looker, sort)
    except KeyboardInterrupt:
        if signals:
            # The terminal is restored: let the signal act.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def _show(console: Console, looker: _Looker, sort: str) -> None:
    """Draw until q, Ctrl-C or a fatal error."""
    shown: tuple[object, ...] = ()
    frozen: _Seen | None = None
    with reading_keys() as read, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            if looker.failure is not None:
                break
            latest = frozen or looker.latest
            state = (looker.looks if frozen is None else -1, looker.problem, sort, console.size)
            if state != shown:
                shown = state
                live.update(
                    _screen(console, latest, sort, looker.problem, paused=frozen is not None), refresh=True
                )
            for key in read(_TICK_SECONDS).lower():
                if key == "q":
                    return
                if key in ("p", " "):
                    frozen = None if frozen else looker.latest
                sort = SORTS.get(key, sort)
    raise looker.failure


def _screen(
    console: Console, latest: _Seen | None, sort: str, problem: str | None, *, paused: bool
) -> RenderableType:
    width, height = console.size
    if latest is None:
        return Text(visible(problem or "looking at PostgreSQL and Redis ..."), style="red" if problem else "")
    return top_view(latest.system, width, height, sort, problem, paused=paused, samples=latest.samples)


@contextmanager
def _ended_by_sigterm(signals: list[int]) -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, and note it."""

    def end(number: int, _frame: object) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
