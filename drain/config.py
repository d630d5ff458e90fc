"""Settings: one frozen, validated value."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from drain import urls
from drain.errors import ConfigError

VARIABLES = {
    "database_url": "DRAIN_DATABASE_URL",
    "schema": "DRAIN_SCHEMA",
    "redis_url": "DRAIN_REDIS_URL",
    "jobs": "DRAIN_JOBS",
    "namespace": "DRAIN_NAMESPACE",
    "forward_queues": "DRAIN_FORWARD_QUEUES",
    "only_tracked_queues": "DRAIN_ONLY_TRACKED_QUEUES",
    "thin_queues": "DRAIN_THIN_QUEUES",
    "whole_queues": "DRAIN_WHOLE_QUEUES",
    "batch_size": "DRAIN_BATCH_SIZE",
    "poll_seconds": "DRAIN_POLL_SECONDS",
    "depth": "DRAIN_DEPTH",
}


# RQ uses queue names in keys. schema.sql has the same rule.
QUEUE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")
QUEUE_CHARACTERS = "letters, digits, _ . : - only"
# Stands for all queues.
_ALL = frozenset("*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one process; `VARIABLES` names their environment variables. Invalid values raise ConfigError.

    Attributes:
        database_url: `postgresql://…` or SQLAlchemy's `postgresql+DRIVER://…`.
        schema: Dedicated schema, selected by `database_url`; by default the first in the search_path.
        redis_url: `redis://…`, `rediss://…` or `unix://…`. Optional for RQ's own workers.
        jobs: Modules that define jobs.
        namespace: Prefix of RQ ids, to share a Redis; by default the database name, plus `-schema`.
        forward_queues: Their jobs leave Postgres when pushed.
        only_tracked_queues: There `drain work` refuses plain and forwarded jobs.
        thin_queues: Always pushed without hashes; `*` for all.
        whole_queues: Always pushed with hashes; `*` for all. Other queues: unless only `drain work` listens.
        batch_size: Maximum rows per enqueuer transaction.
        poll_seconds: Maximum sleep of the enqueuer.
        depth: Maximum ids per Redis list; 0 for no limit, None for a tenth of a second's throughput.
    """

    database_url: str = field(repr=False)
    schema: str = ""
    redis_url: str = field(default="", repr=False)
    jobs: tuple[str, ...] = ()
    namespace: str = ""
    forward_queues: frozenset[str] = frozenset()
    only_tracked_queues: frozenset[str] = frozenset()
    thin_queues: frozenset[str] = frozenset()
    whole_queues: frozenset[str] = frozenset()
    batch_size: int = 2500
    poll_seconds: float = 1.0
    depth: int | None = None

    def __post_init__(self) -> None:
        database_url, of_sqlalchemy = urls.without_driver(self.database_url)
        _refuse_bare_characters("DRAIN_DATABASE_URL", database_url)
        database_url = urls.for_libpq(database_url, of_sqlalchemy=of_sqlalchemy)
        if self.schema:
            database_url = urls.in_schema(database_url, self.schema)
        else:
            object.__setattr__(self, "schema", urls.schema_of(database_url) or "")
        object.__setattr__(self, "database_url", database_url)
        _refuse_bare_characters("DRAIN_REDIS_URL", self.redis_url)
        self._check_queues()
        self._check_redis_url()
        if not self.namespace:
            object.__setattr__(self, "namespace", _namespace_of(self.database_url, self.schema))
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,63}", self.namespace):
            raise ConfigError(
                "DRAIN_NAMESPACE may hold letters, digits, _ and -, at most 63 of them: RQ ids carry it"
            )
        if not 1 <= self.batch_size <= 100_000:
            raise ConfigError("DRAIN_BATCH_SIZE must lie between 1 and 100000")
        if not 0.01 <= self.poll_seconds <= 60:
            raise ConfigError("DRAIN_POLL_SECONDS must lie between 0.01 and 60")
        if self.depth is not None and not 0 <= self.depth <= 1_000_000:
            raise ConfigError("DRAIN_DEPTH must lie between 0 (no bound) and 1000000")

    def _check_queues(self) -> None:
        for name in ("forward_queues", "only_tracked_queues", "thin_queues", "whole_queues"):
            for queue in getattr(self, name) - (_ALL if name in ("thin_queues", "whole_queues") else set()):
                if not QUEUE_NAME.fullmatch(queue):
                    raise ConfigError(f"{VARIABLES[name]}: {queue!r} is not a queue name: {QUEUE_CHARACTERS}")
        if both := self.forward_queues & self.only_tracked_queues:
            raise ConfigError(
                f"queue {min(both)!r} is named in DRAIN_FORWARD_QUEUES and in DRAIN_ONLY_TRACKED_QUEUES: "
                "its jobs would be pushed, and then refused"
            )
        if both := self.thin_queues & self.whole_queues:
            raise ConfigError(
                f"{min(both)!r} is named in DRAIN_THIN_QUEUES and in DRAIN_WHOLE_QUEUES: its jobs have hashes or none"
            )

    def _check_redis_url(self) -> None:
        if self.redis_url and not re.match(r"(rediss?|unix)://", self.redis_url):
            raise ConfigError(
                "DRAIN_REDIS_URL must start with redis://, rediss:// or unix://, "
                "such as redis://localhost:6379/0"
            )
        # redis-py reads any other path as database 0.
        if re.match(r"rediss?://", self.redis_url) and not re.fullmatch(
            r"/?\d*/?", urlsplit(self.redis_url).path, re.ASCII
        ):
            raise ConfigError("DRAIN_REDIS_URL: the path is the number of a database, such as /0")

    @property
    def required_redis_url(self) -> str:
        """Redis URL; raises ConfigError if unset."""
        if not self.redis_url:
            raise ConfigError(
                "no Redis URL: set DRAIN_REDIS_URL (or pass --redis-url), such as redis://localhost:6379/0"
            )
        return self.redis_url

    @classmethod
    def from_texts(cls, texts: Mapping[str, str | None]) -> Settings:
        """Parse settings by field name; "" means the default. Raises ConfigError."""
        # Files often end in a newline.
        stripped = {name: (text or "").strip() for name, text in texts.items()}
        given: dict[str, Any] = {name: text for name, text in stripped.items() if text}
        if "database_url" not in given:
            raise ConfigError(
                "no database URL: set DRAIN_DATABASE_URL (or pass --database-url), "
                "such as postgresql://user@localhost/shop"
            )
        for name, read in (("batch_size", int), ("poll_seconds", float), ("depth", int)):
            if name in given:
                given[name] = _number(VARIABLES[name], given[name], read)
        for name, collect in (
            ("jobs", tuple),
            ("forward_queues", frozenset),
            ("only_tracked_queues", frozenset),
            ("thin_queues", frozenset),
            ("whole_queues", frozenset),
        ):
            if name in given:
                given[name] = collect(_names(given[name]))
        return cls(**given)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the DRAIN_* variables; raises ConfigError."""
        return cls.from_texts({name: environment.get(variable) for name, variable in VARIABLES.items()})


# Cached: fences claims, so a renamed host must not change it.
@cache
def process_name() -> str:
    """Return a unique name: host, process id, random word."""
    # Containers may share host name and process id 1.
    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"


os.register_at_fork(after_in_child=process_name.cache_clear)


def _refuse_bare_characters(variable: str, url: str) -> None:
    """Refuse unescaped characters: part of a password would be shown as the host."""
    if not url.isprintable():
        raise ConfigError(f"{variable} holds a character that cannot be printed, such as a newline")
    user_and_password, at, _ = url.partition("://")[2].rpartition("@")
    bare = at and (not user_and_password.isascii() or re.search(r"[/?#@\[\]]", user_and_password))
    try:
        urlsplit(url)
    except ValueError:
        bare = True
    if bare:
        raise ConfigError(
            f"{variable} cannot be read: percent-encode the special characters of user and password, "
            "such as %40 for @ and %2F for /, and close the brackets of an IPv6 address"
        )


def _namespace_of(database_url: str, schema: str) -> str:
    database = unquote(urlsplit(database_url).path.strip("/")) or "drain"
    name = f"{database}-{schema}" if schema not in ("", "public") else database
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:63]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _number(variable: str, text: str, read: type[int] | type[float]) -> int | float:
    try:
        # Python accepts other scripts' digits, and 1_0.
        return read(text if re.fullmatch(r"[-+.0-9A-Za-z]+", text) else "")
    except ValueError:
        raise ConfigError(f"{variable} must be a number, not {text!r}") from None
