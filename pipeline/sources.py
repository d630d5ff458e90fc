"""Sources for commands: files, a query on Postgres, or any format of Spark's."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from drain.database.url import describe
from drain.errors import ConfigError
from drain.formatting import count
from drain.pipeline import gateway, lines, parquet, rejects
from drain.pipeline.lake import stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPELLING = (
    "a path or an s3:// URL that ends in .parquet, .csv, .json, .jsonl or .orc; a directory with such files; "
    "FORMAT:PATH for any other format of Spark's; or sql:SELECT … on Postgres"
)

# `ps` would show an option's password.
DATABASE_VARIABLE = "DRAIN_SOURCE_DATABASE_URL"
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".orc": "orc"}
# Stands for a directory that is not a partition.
_DIRECTORY = "/"
# Compressed files are read by the ending before.
_COMPRESSED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst")
# Directory of a table format's log, which alone knows the table's files.
_TABLES = {"_delta_log": "delta", ".hoodie": "hudi"}
_KINDS = {
    _DIRECTORY: ("directory that is not a partition", "directories that are not partitions"),
    "": ("file without an ending", "files without an ending"),
}
# Thousands of partitions take minutes to list.
_SAMPLED = 1000
_NAMED = 5
# Not formats, though before a colon and one slash.
_FILE_SYSTEMS = ("file", "hdfs", "dbfs")
# Unreadable lines are errors, not jobs with nulls.
_STRICT = {"mode": "FAILFAST"}
# RFC 4180, as PostgreSQL, Excel and pandas write. Only an unquoted empty field is null; with "" Spark would treat
# quoted ones alike.
_OPTIONS = {
    "csv": {
        "header": "true",
        "enforceSchema": "false",
        "escape": '"',
        "nullValue": "\0",
        "unescapedQuoteHandling": "RAISE_ERROR",
    }
    | _STRICT,
    "json": _STRICT,
}
_SECRET = re.compile(r"(?i)password|secret|token|credential|^url$|key")
# Spark's class that lists a format's options, and the options of all file formats.
_KNOWN = {
    "csv": "org.apache.spark.sql.catalyst.csv.CSVOptions",
    "json": "org.apache.spark.sql.catalyst.json.JSONOptions",
    "parquet": "org.apache.spark.sql.execution.datasources.parquet.ParquetOptions",
    "orc": "org.apache.spark.sql.execution.datasources.orc.OrcOptions",
}
_OF_FILES = (
    "basePath",
    "ignoreCorruptFiles",
    "ignoreMissingFiles",
    "modifiedAfter",
    "modifiedBefore",
    "pathGlobFilter",
    "recursiveFileLookup",
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Data that a command reads.

    Attributes:
        format: In Spark; `postgres_query` for a query.
        path: Empty for formats with options only.
        columns: For CSV or JSON, such as `id bigint, zip text`.
    """

    format: str
    path: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    columns: str = ""

    @property
    def is_divided(self) -> bool:
        """True if Spark reads many small parts."""
        if self.format not in lines.FORMATS:
            return self.format in _FORMATS.values()
        within = stores.lister(self.path)
        names = [self.path] if within is None else islice(_names(within, ""), _SAMPLED)
        is_compressed = any(PurePosixPath(name.lower()).suffix in _COMPRESSED for name in names)
        return "multiline" not in map(str.lower, self.options) and not is_compressed

    @classmethod
    def of(
        cls, text: str, options: Mapping[str, str] | None = None, *, database_url: str = "", columns: str = ""
    ) -> Source:
        """Parse a source; see `SPELLING`.

        Args:
            database_url: For queries, unless the options name another.

        Raises:
            ConfigError: The format cannot be guessed, or has its own types despite `columns`.
        """
        given = dict(options or {})
        prefix, colon, rest = text.partition(":")
        if colon and prefix.lower() == "sql":
            return cls(format="postgres_query", options={"query": rest, "database_url": database_url} | given)
        if colon and prefix.replace("_", "").isalnum() and not _is_url(prefix, rest):
            format_, path = _FORMATS.get(f".{prefix.lower()}", prefix), rest
        else:
            format_, path = _guessed_format(text), text
        if columns and format_ not in lines.FORMATS:
            raise ConfigError(f"--columns is for CSV and JSON; {format_} has its own types")
        merged = _with_defaults(_OPTIONS.get(format_, {}), given)
        return cls(format=format_, path=path, options=merged, columns=columns)

    def description(self) -> dict[str, object]:
        """Describe the source reproducibly, without passwords."""
        defaults = _OPTIONS.get(self.format, {})
        given = {name: value for name, value in sorted(self.options.items()) if defaults.get(name) != value}
        options = {name: _described(name, value) for name, value in given.items()}
        return {
            "source": f"{self.format}:{stores.shown(self.path)}",
            "options": options,
            "columns": self.columns,
        }

    def load(self, spark: SparkSession) -> DataFrame:
        """Return the rows; unusable ones fail when read."""
        return rejects.without_any(self.checked(spark))

    def checked(self, spark: SparkSession) -> DataFrame:
        """Return rows with REASON and RECORD."""
        from drain.pipeline.failures import explained

        with explained():
            _refuse_unknown(spark, self.format, self.options)
            path, options = self.path, self.options
            if self.format in _FORMATS.values():
                path, options = gateway.reachable(spark, path, options)
            if self.format in lines.FORMATS:
                return lines.load(spark, self.format, path, options, self.columns)
            reader = spark.read.format(self.format).options(**options)
            rows = reader.load(path) if path else reader.load()
            return rejects.none(parquet.in_microseconds(rows) if self.format == "parquet" else rows)


def database_of_queries(default: str) -> str:
    """Return DRAIN_SOURCE_DATABASE_URL, or the default."""
    return os.environ.get(DATABASE_VARIABLE, "").strip() or default


def holds_password(options: Mapping[str, str]) -> bool:
    """Return True if `database_url` has a password."""
    url = urlsplit(options.get("database_url", ""))
    return bool(url.password or "password=" in url.query)


def _described(name: str, value: str) -> str:
    # The database's name, as servers may have several.
    if name.lower() == "database_url":
        return describe(value).rpartition("/")[2]
    return "***" if _SECRET.search(name) else value


def _with_defaults(defaults: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): name for name in defaults}
    return {**defaults, **{names.get(name.lower(), name): value for name, value in given.items()}}


def _refuse_unknown(spark: SparkSession, format_: str, options: Mapping[str, str]) -> None:
    if format_ not in _KNOWN:
        return
    of_format = attrgetter(_KNOWN[format_])(spark._jvm).getAllOptions().mkString(",").split(",")
    known = {name.lower() for name in (*of_format, *_OF_FILES)}
    for name in options:
        if name.lower() not in known:
            raise ConfigError(
                f"Spark's {format_} has no option {name!r} and would ignore it; --columns names columns and types"
            )


def _is_url(scheme: str, rest: str) -> bool:
    return rest.startswith("//") or (scheme in _FILE_SYSTEMS and rest.startswith("/"))


def _guessed_format(path: str) -> str:
    by_name = _FORMATS.get(_ending(path.rstrip("/")))
    within = stores.lister(path)
    if within is None:
        if by_name is None:
            raise ConfigError(f"cannot detect the format of {stores.shown(path)!r}; give {SPELLING}")
        return by_name
    for log, format_ in _TABLES.items():
        if (log, True) in within(""):
            return format_
    found = Counter(map(_ending, islice(_names(within, ""), _SAMPLED)))
    formats = {_FORMATS.get(ending) for ending in found}
    guessed = (formats.pop() if len(formats) == 1 else None) or by_name
    if guessed is None:
        raise ConfigError(
            f"cannot detect the format of {stores.shown(path)!r}, which holds {_counted(found)}; put the format before "
            f"the path, such as parquet:{stores.shown(path)}, or name some of the files, such as "
            f"{stores.shown(path).rstrip('/')}/*.parquet"
        )
    return guessed


def _ending(name: str) -> str:
    if name == _DIRECTORY:
        return name
    path = PurePosixPath(name.lower())
    return (path.with_suffix("") if path.suffix in _COMPRESSED else path).suffix


def _names(within: stores.Lister, path: str) -> Iterator[str]:
    """Yield files that Spark would read, and _DIRECTORY for each directory that is not a partition."""
    for name, is_directory in within(path):
        if name.startswith((".", "_")):
            continue
        if not is_directory:
            yield name
        elif "=" in name:
            yield from _names(within, f"{path}/{name}".lstrip("/"))
        else:
            yield _DIRECTORY


def _counted(found: Counter[str]) -> str:
    counts = [count(number, *_KINDS.get(end, (f"{end} file",))) for end, number in found.most_common(_NAMED)]
    return ", ".join([*counts, *(["…"] if len(found) > _NAMED else [])]) or "no files"


def register_by_name(spark: SparkSession, names: Sequence[str]) -> None:
    """Register data sources given as `module:Class`, also from the current directory."""
    from pyspark.sql.datasource import DataSource

    # Spark's workers look there anyway.
    here = str(Path.cwd())
    if names and here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            source = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"the data source {name!r} cannot be imported: {error}") from None
        if not (isinstance(source, type) and issubclass(source, DataSource)):
            raise ConfigError(
                f"{name!r} is not a data source: it must be a class derived from pyspark's DataSource"
            )
        spark.dataSource.register(source)
