"""Options of the data sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from drain.config import VARIABLES, Settings
from drain.database import postgres
from drain.errors import ConfigError

# Added by each connection, or naming a file of this machine.
_NOT_KEPT = ("application_name", "client_encoding", "passfile", "service", "servicefile")


def database_url(options: Mapping[str, str]) -> str:
    """Read `database_url`, or the environment."""
    given = options.get("database_url") or os.environ.get(VARIABLES["database_url"])
    schema = os.environ.get(VARIABLES["schema"])
    return for_all_machines(Settings.from_texts({"database_url": given, "schema": schema}).database_url)


def for_all_machines(database_url: str) -> str:
    """Complete a URL from libpq's variables, service and password files on this machine."""
    with postgres.dial(database_url, "drain spark", settings={}) as connection:
        given = {**connection.info.get_parameters(), "password": connection.info.password}
    kept = {name: value for name, value in given.items() if value and name not in _NOT_KEPT}
    return f"postgresql:///?{urlencode(kept, quote_via=quote)}"


def whole(options: Mapping[str, str], name: str, default: int) -> int:
    """Read a positive whole number."""
    text = options.get(name, str(default)).strip()
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ConfigError(f"option {name} must be a whole number above 0, not {text!r}")
    return int(text)


def positive(options: Mapping[str, str], name: str, default: float) -> float:
    """Read a positive number."""
    text = options.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    # `number <= 0` is false for NaN.
    if not number > 0:
        raise ConfigError(f"option {name} must be a number above 0, not {text!r}")
    return number
