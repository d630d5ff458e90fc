"""Database URLs of other drivers or with a dedicated schema, for libpq."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote, unquote_plus

from drain.errors import ConfigError

_SCHEME = re.compile(r"postgres(?:ql)?(?P<driver>\+[a-z][a-z0-9_]*)?://")
# Values of libpq's `sslmode` and asyncpg's `ssl`.
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
# Other drivers' parameter -> libpq's.
_RENAMED = {"database": "dbname", "timeout": "connect_timeout"}
# Parameters that concern only the application's connections.
_LEFT_OUT = frozenset(
    (
        "async_fallback",
        "command_timeout",
        "max_cacheable_statement_size",
        "max_cached_statement_lifetime",
        "plugin",
        "prepare_threshold",
        "prepared_statement_cache_size",
        "prepared_statement_name_func",
        "statement_cache_size",
        "tcp_keepalive",
    )
)
# How a server is reached: other drivers' parameter -> libpq's.
_REFUSED = {
    "direct_tls": "sslnegotiation=direct",
    "server_settings": "options=-cNAME%3DVALUE",
    "ssl_context": "sslmode, sslrootcert, sslcert and sslkey",
    "unix_sock": "host=/DIRECTORY",
}
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# Programs recognize the schema by the first option.
_IN_SCHEMA = "-c drain.schema={schema} -c search_path={schema}"


def without_driver(url: str) -> tuple[str, bool]:
    """Strip SQLAlchemy's driver name; returns whether there was one.

    Raises:
        ConfigError: Not a PostgreSQL URL.
    """
    match = _SCHEME.match(url)
    if not match:
        raise ConfigError(
            "DRAIN_DATABASE_URL must start with postgresql:// (or SQLAlchemy's postgresql+DRIVER://), "
            "such as postgresql://user@localhost/shop"
        )
    rest = url[match.end() :]
    # SQLAlchemy leaves spaces unescaped; libpq refuses them.
    return "postgresql://" + (rest.replace(" ", "%20") if match["driver"] else rest), match[
        "driver"
    ] is not None


def for_libpq(url: str, *, of_sqlalchemy: bool) -> str:
    """Translate other drivers' parameters to libpq's.

    With `of_sqlalchemy`, `+` in a parameter is a space, and each host has its own `host=`.

    Raises:
        ConfigError: A parameter has no equivalent.
    """
    base, found, query = url.partition("?")
    if not found:
        return url
    given = _pairs(query, of_sqlalchemy=of_sqlalchemy)
    meant = list(_meant(given))
    if of_sqlalchemy:
        meant = _with_all_hosts(meant)
    if meant == given and not (of_sqlalchemy and "+" in query):
        return url
    return _joined(base, meant)


def in_schema(url: str, schema: str) -> str:
    """Return the URL whose sessions see only this schema's tables."""
    require_schema_name(schema)
    base, _, query = url.partition("?")
    pairs = _pairs(query, of_sqlalchemy=False)
    options = " ".join(value for name, value in pairs if name == "options")
    wanted = _IN_SCHEMA.format(schema=schema)
    # The last value of an option wins.
    if options.endswith(wanted):
        return url
    rest = [(name, value) for name, value in pairs if name != "options"]
    return _joined(base, [*rest, ("options", f"{options} {wanted}".strip())])


def out_of_schema(url: str) -> str:
    """Undo `in_schema`, for an application's connections."""
    schema = schema_of(url)
    if schema is None:
        return url
    base, _, query = url.partition("?")
    ours = _IN_SCHEMA.format(schema=schema)
    pairs = [
        (name, value.removesuffix(ours).strip() if name == "options" else value)
        for name, value in _pairs(query, of_sqlalchemy=False)
    ]
    return _joined(base, [pair for pair in pairs if pair != ("options", "")])


def require_schema_name(name: str) -> None:
    """Require a name that needs no quotes, or raise ConfigError."""
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
        raise ConfigError(
            "DRAIN_SCHEMA must be the name of a schema: up to 63 lower-case letters, digits and _, not starting with "
            f"a digit and not reserved by PostgreSQL: {name!r:.100}"
        )


def schema_of(url: str) -> str | None:
    """Return the schema set by `in_schema`, if any."""
    found = re.findall(r"-c drain\.schema=(\w+)", unquote(url.partition("?")[2]))
    return found[-1] if found else None


def _meant(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in pairs:
        if name in _REFUSED:
            raise ConfigError(
                f"DRAIN_DATABASE_URL: the parameter {name} is another driver's, and libpq's is {_REFUSED[name]}"
            )
        if name == "ssl":
            yield "sslmode", _ssl_mode(value)
        elif name not in _LEFT_OUT:
            yield _RENAMED.get(name, name), value


def _ssl_mode(value: str) -> str:
    mode = "require" if value.lower() == "true" else value.lower().replace("_", "-")
    if mode not in _SSL_MODES:
        raise ConfigError(f"DRAIN_DATABASE_URL: ssl must be one of {', '.join(_SSL_MODES)}")
    return mode


def _with_all_hosts(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Join SQLAlchemy's repeated `host=NAME:PORT` into libpq's lists."""
    hosts = [value for name, value in pairs if name == "host"]
    if len(hosts) < 2 and not any(re.search(r"^[^/:]+:\d+$", host) for host in hosts):
        return pairs
    split = [re.fullmatch(r"(.*?)(?::(\d+))?", host) for host in hosts]
    names = ",".join(each[1] for each in split if each)
    ports = ",".join(each[2] or "" for each in split if each)
    rest = [(name, value) for name, value in pairs if name != "host"]
    joined = [*rest, ("host", names)]
    return [*joined, ("port", ports)] if ports.strip(",") else joined


def _pairs(query: str, *, of_sqlalchemy: bool) -> list[tuple[str, str]]:
    decode = unquote_plus if of_sqlalchemy else unquote
    parts = (part.partition("=") for part in query.split("&") if part)
    return [(decode(name), decode(value)) for name, _, value in parts]


def _joined(base: str, pairs: Iterable[tuple[str, str]]) -> str:
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='/,:')}" for name, value in pairs)
    return f"{base}?{query}" if query else base
