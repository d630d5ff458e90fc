"""Spark session: local by default, quiet, and in UTC."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from drain import extras
from drain.errors import ConfigError, DrainError
from drain.pipeline import class_data, java, jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Packages that the Spark commands import.
_NEEDED = ("adbc_driver_postgresql", "pandas", "pyarrow", "pyspark")
_LOGGING = Path(__file__).with_name("log4j2.properties")

# Setting with the options of the JVM.
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Options of the JVM for work that costs PostgreSQL more than Spark. SMALL takes 500 MB instead of 650 for a backfill
# of 2 million rows. BRIEF also compiles quickly and only once: half a second less for a command of ten seconds, and
# twice the time for encoding ten million rows.
SMALL = "-XX:+UseSerialGC"
BRIEF = f"{SMALL} -XX:TieredStopAtLevel=1"

# Defaults of every session, wherever it runs.
_ALWAYS = {
    # Rows of a batch to and from Postgres: enough to hide the cost of a batch, and ten million characters at a time
    # even if each row holds a thousand.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Timeout for an answer of `drain.pipeline.gateway`: listing a million objects takes minutes.
    "spark.hadoop.dfs.webhdfs.socket.read-timeout": "10m",
}
# Settings that the meaning of rows depends on, so that no other setting wins over them: days are by UTC, "007" is the
# name of a queue and no number, and "${x}" in a job's name is no variable.
_REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.variable.substitute": "false",
    # A malformed line must be noticed, whatever the filter says of the columns that it lacks.
    "spark.sql.csv.filterPushdown.enabled": "false",
    "spark.sql.json.filterPushdown.enabled": "false",
    # `drain.pipeline.parquet` converts timestamps of nanoseconds, which Spark refuses otherwise, used or not.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # Times of day, without which Spark refuses the whole file.
    "spark.sql.timeType.enabled": "true",
    # ORC of other tools than Hive and Spark does not name its calendar, which is today's also before 1582.
    "orc.proleptic.gregorian.default": "true",
    # Encodings by all of Java's names, such as latin1 and cp1252.
    "spark.sql.legacy.javaCharsets": "true",
}
# Defaults on one machine, in one process: no page for a browser, no other host to connect to, and little to shuffle.
_LOCALLY = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
}


@contextmanager
def session(
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    verbose: bool = False,
    nice: int = 0,
    java_options: str = "",
    report: Callable[[str], None] = lambda _step: None,
) -> Iterator[SparkSession]:
    """Start a Spark session, stopped at the end of the block; use the running one, if there is one.

    Args:
        master: Spark's master URL, such as `local[4]` or `k8s://https://…`; None: the choice of `spark-submit`, or else
            all cores of this machine.
        settings: Spark's settings by name; they win over job-drain's, except over those that the meaning of rows
            depends on.
        verbose: Show Spark's log and progress. Otherwise the log is kept in a file, which is removed at the end.
        nice: Raise this process' niceness by so much, if Spark runs on this machine; it cannot be lowered again.
        java_options: Options of the JVM on this machine, such as SMALL.
        report: Receives a line when Spark starts, which takes seconds.

    Raises:
        DrainError: Spark is not installed, finds no Java, or does not start; or its JVM was killed in the block.
    """
    require()
    which = java.provide()
    if not verbose:
        # Both log errors that they raise as well, as pages of JSON and tracebacks.
        for name in ("SQLQueryContextLogger", "py4j"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_not_of_py4j)
    # Spark's Python workers run this very Python by default, so they can import the packages that this process can.
    # Only `spark-submit` reads the setting.
    given = (settings or {}).get("spark.pyspark.python")
    os.environ["PYSPARK_PYTHON"] = given or os.environ.get("PYSPARK_PYTHON") or sys.executable
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        with temporarily(running, _REQUIRED):
            yield running
        return
    chosen = _settings(master, settings or {}, verbose=verbose)
    # Not with `verbose`, where Spark's own files may give options, and where standard error is the caller's.
    own = not verbose and chosen.get("spark.master", "").startswith("local")
    data = _class_data(which, chosen) if own else None
    if own:
        # First, so that options of the user's win.
        options = [java_options, data.options if data else "", chosen.get(_JAVA_OPTIONS, "")]
        chosen[_JAVA_OPTIONS] = " ".join(options).strip()
    if chosen.get("spark.master", "").startswith("local"):
        os.nice(nice)
    report(f"starting Spark ({which.name})")
    with tempfile.TemporaryFile() as log, ExitStack() as stack:
        try:
            with nullcontext() if verbose else _standard_error_to(log.fileno()):
                started = stack.enter_context(_started(chosen, data.new if data else None))
        except Exception as error:  # noqa: BLE001  (Spark, py4j and the launcher raise anything)
            raise DrainError(f"Spark did not start: {_reason(error, log)}") from None
        _apply(started, _REQUIRED)
        if not verbose:
            # The JVM of `spark-submit` has started with its own settings for the log.
            started.sparkContext.setLogLevel("ERROR")
        try:
            yield started
        except Exception as error:
            jvm.check(error)
            raise


@contextmanager
def _started(settings: Mapping[str, str], new: Path | None) -> Iterator[SparkSession]:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    started_before = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    with nullcontext() if started_before else jvm.started(settings, new):
        session = SparkSession.builder.config(map=dict(settings)).getOrCreate()
        # The JVM may be ended on purpose while it is connected to this server, which would print a traceback.
        session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        try:
            yield session
        finally:
            # A signal may have broken the call of Spark that was under way, and pyspark then warns that the JVM did not
            # end: `jvm.started` ends it.
            with suppress(Exception), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
                session.stop()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    # py4j logs to the root logger that Ctrl-C came while it waited.
    return Path(record.pathname).parent.name != "py4j"


def require() -> None:
    """Check that Spark is installed, and the packages with which it reads Postgres.

    Raises:
        DrainError: A package is missing, and the text says what to install.
    """
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise DrainError(f"this command runs on Spark: {extras.install('spark')}")


def require_shared(spark: SparkSession, path: str) -> None:
    """Check that executors have a file that this process has: on a cluster, they would write to their own disks.

    Raises:
        ConfigError: The file is on this machine alone.
    """
    context, file = spark.sparkContext, Path(path.removeprefix("file:"))
    if str(context.master).startswith("local") or not file.exists():
        return
    tasks = context.parallelize(range(context.defaultParallelism), context.defaultParallelism)
    if not all(tasks.map(lambda _: file.exists()).collect()):
        raise ConfigError(
            f"{file.parent} is on this machine's disk; a cluster needs a path that all machines share"
        )


@contextmanager
def temporarily(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply these settings to a session while the block runs."""
    before = {name: spark.conf.get(name, None) for name in settings}
    _apply(spark, settings)
    try:
        yield
    finally:
        # The session may have ended.
        with suppress(Exception):
            _apply(spark, before)


def _apply(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def _settings(master: str | None, given: Mapping[str, str], *, verbose: bool) -> dict[str, str]:
    settings = {"spark.app.name": "job-drain"} | _ALWAYS
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        master = master or "local[*]"
    if master:
        settings["spark.master"] = master
        if master.startswith("local"):
            settings |= _LOCALLY
    settings["spark.ui.showConsoleProgress"] = str(verbose).lower()
    if not verbose:
        settings[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    return settings | dict(given)


def _class_data(which: java.Java, settings: Mapping[str, str]) -> class_data.Archive | None:
    from pyspark.find_spark_home import _find_spark_home

    if which.program is None:
        return None
    return class_data.archive(which.program, _find_spark_home(), settings)


@contextmanager
def _standard_error_to(file: int) -> Iterator[None]:
    """Redirect the standard error of processes started in the block, and of their children, to a file."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _reason(error: BaseException, log: IO[bytes]) -> str:
    """Find the line of Spark's log that names the error, or else the first line of the exception."""
    log.seek(0)
    text = log.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if re.search(r"(?i)error|exception", line)]
    return lines[0] if lines else str(error).partition("\n")[0]
