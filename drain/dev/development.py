"""All that `drain dev` runs: started, looked after, and ended in order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic

from drain.config import VARIABLES
from drain.database import schema
from drain.dev import ports
from drain.dev.console import Console
from drain.dev.hold import held
from drain.dev.program import Program
from drain.dev.sources import Sources
from drain.dev.worker import DOES_NOT_IMPORT, FIRST, GRACE_SECONDS
from drain.embedded import Services, services
from drain.embedded.guarded_server import GuardedServer

_TICK_SECONDS = 0.1
_HOST = "127.0.0.1"
# After Ctrl-C: until what runs is interrupted, and until it is killed.
_POLITE_SECONDS = 3.0
_KILL_SECONDS = 2.0
# Pause before a program that died is started again; doubles with each death in a row.
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 10.0
# A program that has lived this long has begun well.
_WELL_SECONDS = 10.0
# A worker that does not end after a change is killed this long after it was told to.
_RELOAD_SECONDS = GRACE_SECONDS + 5.0
_FEW = 3

_ENQUEUER = "from drain.__main__ import main; main(['run', '--metrics-port', '0'])"
_WORKER = "from drain.dev.worker import words; from drain.__main__ import main; main(words(sys.argv[1:]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run.

    Attributes:
        jobs: Modules that define jobs; without any, only the servers run.
        directory: Where the data are kept; None for a temporary directory.
        port: Port of PostgreSQL on 127.0.0.1; None for a Unix socket alone.
        redis_port: Port of Redis on 127.0.0.1; None for a Unix socket alone.
    """

    jobs: Sequence[str] = ()
    directory: Path | None = None
    port: int | None = None
    redis_port: int | None = None


class Development:
    """One `drain dev`.

    Args:
        plan: What to run.
        stop: Ends `run` once it is set, by a signal handler for example.
    """

    def __init__(self, plan: Plan, stop: Event) -> None:
        self._plan = plan
        self._stop = stop
        self._console = Console()

    @contextmanager
    def servers(self) -> Iterator[Services]:
        """Run PostgreSQL, with the tables, and Redis for as long as the block runs.

        Raises:
            EmbeddedError: A server is not installed or did not start, a port is in use, or another `drain dev` has
                the directory.
        """
        plan = self._plan
        ports.require_free(_HOST, {"--port": plan.port, "--redis-port": plan.redis_port})
        # Data that are kept on purpose are kept whole: Redis too.
        durable = {"appendonly": "yes"} if plan.directory else {}
        with ExitStack() as stack:
            if plan.directory:
                stack.enter_context(held(plan.directory))
            started = stack.enter_context(
                services(
                    plan.directory,
                    redis_settings=durable,
                    postgres_port=plan.port,
                    redis_port=plan.redis_port,
                )
            )
            schema.install(started.database_url)
            yield started

    def run(self, started: Services) -> None:
        """Look after everything until `stop` is set."""
        with ExitStack() as stack:
            parts: list[_Log | _Enqueuer | _Worker] = [
                _Log("postgres", started.postgres, _POSTGRES_PROBLEM, self._console),
                _Log("redis", started.redis, _REDIS_PROBLEM, self._console),
            ]
            if self._plan.jobs:
                variables = {
                    VARIABLES["database_url"]: started.database_url,
                    VARIABLES["redis_url"]: started.redis_url,
                }
                enqueuer = Program("enqueuer", _ENQUEUER, variables, self._console.relay)
                stack.callback(enqueuer.close)
                worker = Program("worker", _WORKER, variables, self._console.relay)
                stack.callback(worker.close)
                stack.callback(_end, [worker, enqueuer])
                parts += [_Enqueuer(enqueuer, self._console), _Worker(worker, self._console, self._plan.jobs)]
            while not self._stop.is_set():
                for part in parts:
                    part.look()
                # A signal's handler does not run in a wait that began just after the signal had come.
                self._stop.wait(_TICK_SECONDS)


class _Enqueuer:
    """Keeps the enqueuer running."""

    def __init__(self, program: Program, console: Console) -> None:
        self._program = program
        self._console = console
        self._start_at: float | None = 0.0
        self._began_at = 0.0
        self._pause = 0.0

    def look(self) -> None:
        """Start the program if it is time to, and notice that it has ended."""
        code = self._program.ended()
        if code is not None:
            self._start_at = self._after(code)
        if not self._program.pid and self._start_at is not None and monotonic() >= self._start_at:
            self._began_at = monotonic()
            self._program.start(*self._words())

    def _words(self) -> Sequence[str]:
        return ()

    def _after(self, code: int) -> float | None:
        """When to start again the program that has ended with this code; None for not now."""
        lived = monotonic() - self._began_at
        self._pause = (
            _FIRST_PAUSE_SECONDS
            if lived > _WELL_SECONDS or not self._pause
            else min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
        )
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._console.say(self._program.name, f"{how}: it starts again in {self._pause:g} s", "yellow")
        return monotonic() + self._pause


class _Worker(_Enqueuer):
    """Keeps the worker running, and replaces it when the sources change."""

    def __init__(self, program: Program, console: Console, modules: Sequence[str]) -> None:
        super().__init__(program, console)
        self._modules = modules
        self._first = [FIRST]
        # Before the first worker imports them, so that no change is missed.
        self._sources = Sources(Path.cwd(), modules)
        if not self._sources.complete:
            console.say(
                "dev",
                f"too many directories below {Path.cwd()}: only the job modules' own are watched",
                "yellow",
            )
        self._reloads_since: float | None = None

    def look(self) -> None:
        """As for every program; and end it when a source has changed."""
        if changed := self._sources.changed():
            self._reload(changed)
        if self._reloads_since and monotonic() > self._reloads_since + _RELOAD_SECONDS:
            self._console.say("worker", "does not end, and is killed", "yellow")
            self._program.kill()
            self._reloads_since, self._start_at = None, 0.0
        super().look()

    def _words(self) -> Sequence[str]:
        first, self._first = self._first, []
        return [*first, *self._modules]

    def _reload(self, changed: Sequence[Path]) -> None:
        self._console.say("worker", f"{_named(changed)} changed: the worker starts again", "blue")
        if not self._program.pid:
            self._start_at = 0.0
        elif not self._reloads_since:
            self._reloads_since = monotonic()
            self._program.terminate()

    def _after(self, code: int) -> float | None:
        reloads, self._reloads_since = self._reloads_since, None
        if reloads:
            return 0.0
        if code == DOES_NOT_IMPORT:
            self._first = [FIRST]
            self._console.say("worker", "waits for the next change of a Python file", "yellow")
            return None
        return super()._after(code)


# Lines of a server's log that say that something is wrong: PostgreSQL's from the word behind time and process on.
_POSTGRES_PROBLEM = re.compile(r"(?:\S+ \S+ \S+ \[\d+\] )?((?:ERROR|FATAL|PANIC): .*)")
_REDIS_PROBLEM = re.compile(r"\S+ .*? # (.*)")


class _Log:
    """Shows what a server's log says is wrong from now on, and starts the server again if it has ended."""

    def __init__(self, name: str, server: GuardedServer, problem: re.Pattern[str], console: Console) -> None:
        self._name = name
        self._server = server
        self._problem = problem
        self._console = console
        self._offset = server.log.stat().st_size

    def look(self) -> None:
        """Show the new lines that say that something is wrong."""
        with self._server.log.open("rb") as log:
            log.seek(self._offset)
            text = log.read()
        # The last line may be incomplete.
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if match := self._problem.match(line):
                self._console.say(self._name, match[1], "red")
        if not self._server.runs:
            self._console.say(self._name, "has ended: it starts again", "red")
            self._server.start()
            # What a server writes as it starts looks like trouble and is none.
            self._offset = self._server.log.stat().st_size
            self._console.say(self._name, "runs again")


def _end(programs: Sequence[Program]) -> None:
    """Let the programs end within seconds: what runs in them is interrupted, then killed."""
    for seconds in (_POLITE_SECONDS, _KILL_SECONDS):
        deadline = monotonic() + seconds
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait(deadline - monotonic())


def _named(paths: Sequence[Path]) -> str:
    here = Path.cwd()
    names = [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in paths[:_FEW]]
    more = f" and {len(paths) - _FEW} more" if len(paths) > _FEW else ""
    return f"{', '.join(names)}{more}"
