"""Options shared by the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from drain.pipeline.interruption import interruptible
from drain.pipeline.lake.files import Archive
from drain.pipeline.session import session
from drain.pipeline.sources import register_by_name
from drain.terminal.commandline import F

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Runtime:
    """Settings of a command's Spark session."""

    master: str | None
    settings: Mapping[str, str]
    verbose: bool
    nice: int

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `session.session`."""
        return {
            "master": self.master,
            "settings": dict(self.settings),
            "verbose": self.verbose,
            "nice": self.nice,
        }

    @contextmanager
    def session(
        self,
        report: Callable[[str], None],
        register: Sequence[str] = (),
        *,
        ours: bool = True,
        java_options: str = "",
    ) -> Iterator[SparkSession]:
        """Start a session; the first signal cancels its jobs.

        Args:
            register: Further data sources, as `module:Class`.
            ours: Register job-drain's; the first costs a second, for Spark's Python process.
        """
        started = session(**self.arguments, java_options=java_options, report=report)
        with interruptible(started) as spark:
            from drain.pipeline import datasources

            if ours:
                datasources.register(spark)
            register_by_name(spark, register)
            yield spark


def warn_if_absent(archive: str | None) -> None:
    """Warn of a missing archive."""
    if archive is not None and not Archive(archive).exists():
        click.echo(f"there is no archive at {archive}: only jobs in Postgres count", err=True)


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse NAME=VALUE."""
    split = [text.partition("=") for text in texts]
    for (name, equals, _), text in zip(split, texts, strict=True):
        if not name or not equals:
            raise click.UsageError(f"{option} must be NAME=VALUE, not {text!r}")
    return {name.strip(): value for name, _, value in split}


def spark_options(command: F) -> F:
    """Add Spark's options; the command receives a `Runtime`."""

    @wraps(command)
    def with_runtime(
        *, master: str | None, conf: tuple[str, ...], verbose: bool, nice: int, **given: Any
    ) -> Any:
        return command(runtime=Runtime(master, pairs(conf, "--conf"), verbose, nice), **given)

    decorated: Callable[..., Any] = with_runtime
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Show Spark's log and progress."),
        click.option(
            "--nice",
            type=click.IntRange(0, 19),
            metavar="N",
            default=5,
            show_default=True,
            envvar="DRAIN_NICE",
            show_envvar=True,
            help="Niceness of Spark on this machine.",
        ),
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Spark setting; repeatable."),
        click.option(
            "--master",
            envvar="SPARK_MASTER",
            show_envvar=True,
            metavar="URL",
            help="Spark master: local[4], spark://…, k8s://…, yarn; all local cores by default.",
        ),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[return-value]
