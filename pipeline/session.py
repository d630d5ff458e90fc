"""Spark session: local by default, quiet, in UTC."""

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

_NEEDED = ("adbc_driver_postgresql", "pandas", "pyarrow", "pyspark")
_LOGGING = Path(__file__).with_name("log4j2.properties")

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# For work that costs PostgreSQL more than Spark. SMALL takes 500 instead of 650 MB for a backfill of 2 million rows.
# BRIEF also compiles only once: half a second less for short commands, twice the time to encode ten million rows.
SMALL = "-XX:+UseSerialGC"
BRIEF = f"{SMALL} -XX:TieredStopAtLevel=1"

_ALWAYS = {
    # Rows per batch to and from Postgres; ten MB with long rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Listing a million objects takes `drain.pipeline.gateway` minutes.
    "spark.hadoop.dfs.webhdfs.socket.read-timeout": "10m",
}
# These decide the meaning of rows: UTC days, "007" as a queue's name, "${x}" as plain text. Not overridable.
_REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.variable.substitute": "false",
    # Malformed lines must be noticed, even in columns that no filter needs.
    "spark.sql.csv.filterPushdown.enabled": "false",
    "spark.sql.json.filterPushdown.enabled": "false",
    # `drain.pipeline.parquet` converts nanoseconds, which Spark would refuse.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # Without times of day, Spark refuses the whole file.
    "spark.sql.timeType.enabled": "true",
    # ORC of other tools does not name its calendar: today's, also before 1582.
    "orc.proleptic.gregorian.default": "true",
    # Encodings by all of Java's names.
    "spark.sql.legacy.javaCharsets": "true",
}
# One process: no web page, no other hosts, little shuffling.
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
    """Start a Spark session for the block, or use the running one.

    Args:
        master: None for `spark-submit`'s, or all local cores.
        settings: Override all but those that decide the meaning of rows.
        verbose: Show Spark's log and progress, instead of logging to a temporary file.
        nice: Added to this process' niceness if Spark is local; irreversible.

    Raises:
        DrainError: Spark is missing, lacks Java, or does not start; or its JVM was killed.
    """
    require()
    which = java.provide()
    if not verbose:
        # Both also log the errors that they raise.
        for name in ("SQLQueryContextLogger", "py4j"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_not_of_py4j)
    # For Spark's workers: this Python, with its packages. Only `spark-submit` reads the setting.
    given = (settings or {}).get("spark.pyspark.python")
    os.environ["PYSPARK_PYTHON"] = given or os.environ.get("PYSPARK_PYTHON") or sys.executable
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        with temporarily(running, _REQUIRED):
            yield running
        return
    chosen = _settings(master, settings or {}, verbose=verbose)
    # With `verbose`, Spark's files may set options, and standard error is the caller's.
    own = not verbose and chosen.get("spark.master", "").startswith("local")
    data = _class_data(which, chosen) if own else None
    if own:
        # First, so that the user's options win.
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
            # `spark-submit`'s JVM has its own log settings.
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
        # The JVM may end while connected to this server, which would print a traceback.
        session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        try:
            yield session
        finally:
            # A signal may have broken a call; pyspark then warns about the JVM, which `jvm.started` ends.
            with suppress(Exception), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
                session.stop()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    # py4j logs Ctrl-C to the root logger.
    return Path(record.pathname).parent.name != "py4j"


def require() -> None:
    """Check that Spark is installed."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise DrainError(f"this command runs on Spark: {extras.install('spark')}")


def require_shared(spark: SparkSession, path: str) -> None:
    """Refuse a local file on a cluster, where executors write to their own disks."""
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
    """Apply settings during the block."""
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
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _reason(error: BaseException, log: IO[bytes]) -> str:
    log.seek(0)
    text = log.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if re.search(r"(?i)error|exception", line)]
    return lines[0] if lines else str(error).partition("\n")[0]
