"""Shared options, one-line errors and exit codes of commands."""

from __future__ import annotations

import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import psycopg

from drain.config import VARIABLES, Settings
from drain.errors import ConfigError, DrainError
from drain.formatting import seconds, visible

F = TypeVar("F", bound=Callable[..., Any])

# Since click 8.2, a group without a subcommand raises its help.
_HELP_OF_GROUP: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
_HELP = {
    "database_url": "PostgreSQL URL.",
    "schema": "Schema of the tables.",
    "redis_url": "Redis URL.",
    "jobs": "Modules that define jobs, comma-separated.",
    "namespace": "Prefix of RQ job ids; the database name by default.",
    "forward_queues": "Forward-mode queues, comma-separated.",
    "only_tracked_queues": "Queues that refuse plain RQ jobs, comma-separated.",
    "thin_queues": "Queues delivered without RQ hashes, for `drain work` only; * for all. Detected by default.",
    "whole_queues": "Queues always delivered with RQ hashes; * for all.",
    "batch_size": "Maximum rows per transaction; 2500 by default.",
    "depth": "Maximum jobs per Redis list, 0 for unlimited; by default, a tenth of a second of work.",
    "poll_seconds": "Maximum idle sleep; 1 by default.",
}
_KINDS = {"batch_size": "INTEGER", "poll_seconds": "FLOAT", "depth": "INTEGER"}


class FiniteRange(click.FloatRange):
    """Float range without NaN, which click accepts in any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the text to a number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class Port(click.IntRange):
    """TCP port, or 0, meaning `zero`; an invalid one is a `ConfigError` that names `variable`."""

    def __init__(self, variable: str, zero: str = "none") -> None:
        super().__init__(0, 65_535)
        self._variable = variable
        self._zero = zero

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> int:
        """Convert the text to a port."""
        # int() accepts other scripts' digits, and 1_0.
        if not re.fullmatch("[0-9]{1,5}", str(value).strip()) or int(value) > 65_535:
            raise ConfigError(
                f"{self._variable} must be a port from 1 to 65535, or 0 for {self._zero}, not {value!r}"
            )
        return int(value)


class _Duration(click.ParamType):  # type: ignore[type-arg]
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return seconds(str(value))
        except ValueError as error:
            self.fail(f"{error}, not as {value!r}", param, ctx)


# Duration in seconds.
DURATION = _Duration()


class _JobId(click.IntRange):
    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not re.fullmatch("[0-9]+", str(value)):
            self.fail(f"{value!r} is not a job id: give a whole number", param, ctx)
        return super().convert(value, param, ctx)


JOB_ID = _JobId(0, 2**63 - 1)


queue_file_option = click.option(
    "--queue-file",
    type=click.Path(path_type=Path),
    envvar="DRAIN_QUEUE_FILE",
    show_envvar=True,
    metavar="FILE",
    help="TOML file with SLOs, as for `drain queue apply`.",
)
trace_option = click.option(
    "--trace",
    is_flag=True,
    envvar="DRAIN_TRACE",
    show_envvar=True,
    help="Record each job's timeline in Redis for `drain trace`: 300 bytes per job, for an hour.",
)


class Group(click.Group):
    """Command group with headings, one-line errors and exit code 1."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._sections = sections or {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by heading, then the rest."""
        placed = {name for names in self._sections.values() for name in names}
        rest = [name for name in self.list_commands(ctx) if name not in placed]
        width = max(map(len, self.commands), default=0)
        for heading, names in [*self._sections.items(), ("Commands", rest)]:
            found = [(name, self.commands[name]) for name in names if name in self.commands]
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width - width - 4))
                for name, command in found
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line, even with closed or full streams."""
        open_standard_streams()
        try:
            try:
                return super().main(*args, **extra)
            finally:
                # The interpreter's exit is too late to report a full disk.
                sys.stdout.flush()
        except OSError as error:
            _forget_output()
            # A reader such as `head` closed the pipe: not an error.
            if not isinstance(error, BrokenPipeError):
                click.echo(f"Error: the operating system reports: {error.strerror or error}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, reporting errors in one line."""
        try:
            with errors_in_one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn expected errors into `click.ClickException`s."""
    try:
        yield
    except _HELP_OF_GROUP:
        raise
    except click.ClickException as error:
        error.message = visible(error.message)  # type: ignore[misc]
        raise
    except DrainError as error:
        raise click.ClickException(visible(str(error))) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise click.ClickException(f"{visible(str(error.filename))}: {error.strerror or error}") from error
    except UnicodeEncodeError as error:
        raise click.ClickException("an argument contains bytes that are invalid in this encoding") from error
    except psycopg.Error as error:
        reason = error.diag.message_primary or str(error).partition("\n")[0]
        is_right = isinstance(error, psycopg.errors.InsufficientPrivilege)
        advice = "; `drain roles` prints the rights of each role" if is_right else ""
        raise click.ClickException(f"PostgreSQL refused: {visible(reason)}{advice}") from error


def _forget_output() -> None:
    """Discard output, which the interpreter would retry at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_standard_streams() -> None:
    """Open closed standard streams on the null device; accept all characters.

    Otherwise the next file gets the stream's number, and C code's output. Drops an invalid COLUMNS.
    """
    if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get("COLUMNS", "80")):
        del os.environ["COLUMNS"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # `open` returns the lowest free number, this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def setting_option(name: str) -> Callable[[F], F]:
    """Add a setting to a command, which gets its text or None."""
    option, kind = f"--{name.replace('_', '-')}", _KINDS.get(name, "TEXT")
    return click.option(option, envvar=VARIABLES[name], show_envvar=True, metavar=kind, help=_HELP[name])


def settings_options(*names: str) -> Callable[[F], F]:
    """Add settings to a command; the database URL brings the schema."""
    if "database_url" in names:
        place = names.index("database_url") + 1
        names = (*names[:place], "schema", *names[place:])

    def decorate(command: F) -> F:
        def with_settings(**given: Any) -> Any:
            texts = {name: given.pop(name) for name in names}
            return command(settings=Settings.from_texts(texts), **given)

        return wrapped(command, with_settings, [setting_option(name) for name in reversed(names)])

    return decorate


def wrapped(command: F, wrapper: Callable[..., Any], options: Iterable[Callable[[Any], Any]]) -> F:
    """Give a wrapper its command's name, help and options."""
    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in options:
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]


def add_to(command: click.Command, callback: Callable[..., Any]) -> None:
    """Replace a command's callback, and add its options.

    The callback passes on options that are not its own.
    """
    command.callback = callback
    command.params += reversed(getattr(callback, "__click_params__", []))


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=20,
    show_default=True,
    help="Maximum number of jobs.",
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Log every step.")
