"""What a command is told to read: files, a query on Postgres, or anything that Spark has a format for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from drain.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPELLING = (
    "a path that ends in .parquet, .csv, .json, .jsonl or .orc; FORMAT:PATH for any other format of Spark's, such as "
    "parquet:s3a://bucket/documents; or sql:SELECT … on Postgres"
)

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".orc": "orc"}
# A CSV without its names, or with numbers that sort as text, is of little use.
# And a line that cannot be read is not a job with nulls.
_STRICT = {"mode": "FAILFAST"}
_OPTIONS = {"csv": {"header": "true", "inferSchema": "true"} | _STRICT, "json": _STRICT}


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to read.

    Attributes:
        format: Of Spark's; `postgres_query` for a query.
        path: Where; empty for formats that are told by options alone.
        options: Of the format.
    """

    format: str
    path: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, options: Mapping[str, str] | None = None, *, database_url: str = "") -> Source:
        """Read what a person wrote; see `SPELLING`.

        Args:
            text: Theirs.
            options: Of the format, in addition.
            database_url: Where queries go, unless the options say otherwise.

        Raises:
            ConfigError: No format can be made out.
        """
        given = dict(options or {})
        prefix, colon, rest = text.partition(":")
        if colon and prefix.lower() == "sql":
            return cls(format="postgres_query", options={"query": rest, "database_url": database_url} | given)
        if colon and prefix.replace("_", "").isalnum() and not rest.startswith("//"):
            return cls(format=prefix, path=rest, options=_OPTIONS.get(prefix, {}) | given)
        name = PurePosixPath(text.rstrip("/")).suffix.lower()
        if name not in _FORMATS:
            raise ConfigError(f"cannot tell the format of {text!r}; give {SPELLING}")
        format_ = _FORMATS[name]
        return cls(format=format_, path=text, options=_OPTIONS.get(format_, {}) | given)

    def load(self, spark: SparkSession) -> DataFrame:
        """The rows; read when they are needed, and only then.

        Raises:
            DrainError: The source is not there, or cannot be read.
        """
        from pipeline.failures import explained

        with explained():
            reader = spark.read.format(self.format).options(**self.options)
            return reader.load(self.path) if self.path else reader.load()


def register_others(spark: SparkSession, names: Sequence[str]) -> None:
    """Let the session read Python data sources of others, each named as `module:Class`.

    Modules in the current directory are found. Elsewhere than on this machine they have to be installed.

    Raises:
        ConfigError: One cannot be imported.
    """
    from pyspark.sql.datasource import DataSource

    # Spark's workers look there by themselves.
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
            raise ConfigError(f"{name!r} is no data source: no class that derives from pyspark's DataSource")
        spark.dataSource.register(source)
