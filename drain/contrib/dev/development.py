"""All programs of `drain dev`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic
from typing import NamedTuple

from drain.config import VARIABLES
from drain.contrib.dev import ports
from drain.contrib.dev.console import Console
from drain.contrib.dev.directory_lock import locked
from drain.contrib.dev.guarded_program import GuardedProgram
from drain.contrib.dev.source_watcher import SourceWatcher
from drain.contrib.dev.worker import GRACE_SECONDS, IMPORT_FAILED, WITH_EXAMPLE
from drain.database import schema
from drain.embedded import EmbeddedPostgres, EmbeddedRedis
from drain.embedded.guarded_server import GuardedServer
from drain.embedded.services import without_client_settings

_TICK_SECONDS = 0.1
_HOST = "127.0.0.1"
# After Ctrl-C, until running jobs are interrupted, and then until programs are killed.
_POLITE_SECONDS = 3.0
_KILL_SECONDS = 2.0
# Before a dead program restarts; doubles with each consecutive death.
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 10.0
# A death after this is the first again.
_WELL_SECONDS = 10.0
# From a change's SIGTERM to the SIGKILL of a worker.
_RELOAD_SECONDS = GRACE_SECONDS + 5.0
_MOST_NAMED = 3

_ENQUEUER = "from drain.__main__ import main; main(['run', '--metrics-port', '0'])"
_WORKER = (
    "from drain.contrib.dev.worker import work_arguments; "
    "from drain.__main__ import main; main(work_arguments(sys.argv[1:]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Options of `drain dev`.

    Attributes:
        jobs: Modules; if empty, only the servers run.
        directory: For data; None for a temporary one.
        port, redis_port: On 127.0.0.1; None for only a Unix socket.
        database_url: Of a PostgreSQL with the tables; None to run one.
        redis_url: None to run one.
    """

    jobs: Sequence[str] = ()
    directory: Path | None = None
    port: int | None = None
    redis_port: int | None = None
    database_url: str | None = field(default=None, repr=False)
    redis_url: str | None = field(default=None, repr=False)


class Servers(NamedTuple):
    """Own or given servers."""

    plan: Plan
    postgres: EmbeddedPostgres | None
    redis: EmbeddedRedis | None

    @property
    def database_url(self) -> str:
        """URL of PostgreSQL."""
        return self.postgres.url if self.postgres else self.plan.database_url or ""

    @property
    def redis_url(self) -> str:
        """URL of Redis."""
        return self.redis.url if self.redis else self.plan.redis_url or ""


class Development:
    """One `drain dev`, until `stop` is set."""

    def __init__(self, plan: Plan, stop: Event) -> None:
        self._plan = plan
        self._stop = stop
        self._console = Console()

    @contextmanager
    def servers(self) -> Iterator[Servers]:
        """Run PostgreSQL, with the tables, and Redis during the block, unless others are given.

        Raises:
            EmbeddedError: A server is missing or does not start, a port is in use, or the directory is locked.
        """
        plan = self._plan
        ports.require_free(_HOST, {"--port": plan.port, "--redis-port": plan.redis_port})
        directory = plan.directory
        # Redis persists its data if PostgreSQL does.
        durable = {"appendonly": "yes"} if directory else {}
        with ExitStack() as stack:
            if directory:
                stack.enter_context(locked(directory))
            postgres = redis = None
            if not plan.database_url:
                postgres = EmbeddedPostgres(directory and directory / "postgres", port=plan.port)
                # Client settings are not meant for this server.
                stack.enter_context(without_client_settings())
            if not plan.redis_url:
                place = directory and directory / "redis"
                redis = EmbeddedRedis(place, settings=durable, port=plan.redis_port)
            for server in filter(None, (postgres, redis)):
                stack.enter_context(server)
            if postgres:
                schema.install(postgres.url)
            yield Servers(plan, postgres, redis)

    def run(self, servers: Servers) -> None:
        """Run and check the programs until `stop` is set."""
        with ExitStack() as stack:
            parts: list[_Server | _Enqueuer | _Worker] = []
            if servers.postgres:
                parts.append(_Server("postgres", servers.postgres, _POSTGRES_PROBLEM, self._console))
            if servers.redis:
                parts.append(_Server("redis", servers.redis, _REDIS_PROBLEM, self._console))
            if self._plan.jobs:
                variables = {
                    VARIABLES["database_url"]: servers.database_url,
                    VARIABLES["redis_url"]: servers.redis_url,
                }
                enqueuer = GuardedProgram("enqueuer", _ENQUEUER, variables, self._console.relay)
                stack.callback(enqueuer.close)
                worker = GuardedProgram("worker", _WORKER, variables, self._console.relay)
                stack.callback(worker.close)
                stack.callback(_end, [worker, enqueuer])
                # The example stages on the PostgreSQL named in the lines for another shell.
                example = [WITH_EXAMPLE] if servers.postgres else []
                parts += [
                    _Enqueuer(enqueuer, self._console),
                    _Worker(worker, self._console, self._plan.jobs, example),
                ]
            while not self._stop.is_set():
                for part in parts:
                    part.check()
                # Short: a signal that arrives just before a wait is handled only after it.
                self._stop.wait(_TICK_SECONDS)


class _Enqueuer:
    def __init__(self, program: GuardedProgram, console: Console) -> None:
        self._program = program
        self._console = console
        self._start_at: float | None = 0.0
        self._began_at = 0.0
        self._pause = 0.0

    def check(self) -> None:
        code = self._program.ended()
        if code is not None:
            self._start_at = self._restart_time(code)
        if not self._program.pid and self._start_at is not None and monotonic() >= self._start_at:
            self._began_at = monotonic()
            self._program.start(*self._arguments())

    def _arguments(self) -> Sequence[str]:
        return ()

    def _restart_time(self, code: int) -> float | None:
        """Return when to restart; None for not now."""
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
    def __init__(
        self, program: GuardedProgram, console: Console, modules: Sequence[str], example: Sequence[str]
    ) -> None:
        super().__init__(program, console)
        self._modules = modules
        self._example = self._extra_arguments = example
        # Before the first worker, so that no change is missed.
        self._sources = SourceWatcher(Path.cwd(), modules)
        if not self._sources.complete:
            console.say(
                "dev",
                f"too many directories below {Path.cwd()}: only the job modules' own are watched",
                "yellow",
            )
        self._reload_began_at: float | None = None

    def check(self) -> None:
        if changed := self._sources.changed():
            self._reload(changed)
        if self._reload_began_at and monotonic() > self._reload_began_at + _RELOAD_SECONDS:
            self._console.say("worker", "does not end, and is killed", "yellow")
            self._program.kill()
            self._reload_began_at, self._start_at = None, 0.0
        super().check()

    def _arguments(self) -> Sequence[str]:
        extra, self._extra_arguments = self._extra_arguments, []
        return [*extra, *self._modules]

    def _reload(self, changed: Sequence[Path]) -> None:
        self._console.say("worker", f"{_named(changed)} changed: the worker starts again", "blue")
        if not self._program.pid:
            self._start_at = 0.0
        elif not self._reload_began_at:
            self._reload_began_at = monotonic()
            self._program.terminate()

    def _restart_time(self, code: int) -> float | None:
        reload_began_at, self._reload_began_at = self._reload_began_at, None
        if reload_began_at:
            return 0.0
        if code == IMPORT_FAILED:
            self._extra_arguments = self._example
            self._console.say("worker", "waits for the next change of a Python file", "yellow")
            return None
        return super()._restart_time(code)


# A server's log lines that report a problem; of PostgreSQL's, the text from the level on.
_POSTGRES_PROBLEM = re.compile(r"(?:\S+ \S+ \S+ \[\d+\] )?((?:ERROR|FATAL|PANIC): .*)")
_REDIS_PROBLEM = re.compile(r"\S+ .*? # (.*)")


class _Server:
    """Shows problems from a server's log, and restarts the server."""

    def __init__(self, name: str, server: GuardedServer, problem: re.Pattern[str], console: Console) -> None:
        self._name = name
        self._server = server
        self._problem = problem
        self._console = console
        self._offset = server.log.stat().st_size

    def check(self) -> None:
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
            # A server's startup lines look like problems.
            self._offset = self._server.log.stat().st_size
            self._console.say(self._name, "runs again")


def _end(programs: Sequence[GuardedProgram]) -> None:
    for seconds in (_POLITE_SECONDS, _KILL_SECONDS):
        deadline = monotonic() + seconds
        for program in programs:
            program.terminate()
        for program in programs:
            program.wait(deadline - monotonic())


def _named(paths: Sequence[Path]) -> str:
    here = Path.cwd()
    names = [
        str(path.relative_to(here) if path.is_relative_to(here) else path) for path in paths[:_MOST_NAMED]
    ]
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return f"{', '.join(names)}{more}"
