"""Options of the data sources, checked as strictly as settings."""

from __future__ import annotations

import os
from collections.abc import Mapping

from drain.config import VARIABLES, Settings
from drain.errors import ConfigError


def database_url(options: Mapping[str, str]) -> str:
    """Read the option `database_url`, or else the environment.

    Raises:
        ConfigError: Neither is given, or the URL is malformed.
    """
    given = options.get("database_url") or os.environ.get(VARIABLES["database_url"])
    schema = os.environ.get(VARIABLES["schema"])
    return Settings.from_texts({"database_url": given, "schema": schema}).database_url


def whole(options: Mapping[str, str], name: str, default: int) -> int:
    """Read an option that is a whole number above zero.

    Raises:
        ConfigError: The text is no such number.
    """
    text = options.get(name, str(default)).strip()
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ConfigError(f"option {name} must be a whole number above 0, not {text!r}")
    return int(text)


def positive(options: Mapping[str, str], name: str, default: float) -> float:
    """Read an option that is a number above zero.

    Raises:
        ConfigError: The text is no such number.
    """
    text = options.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    # Not `number <= 0`, which is false for NaN.
    if not number > 0:
        raise ConfigError(f"option {name} must be a number above 0, not {text!r}")
    return number
