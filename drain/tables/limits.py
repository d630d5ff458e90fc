"""Limits of a claim."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_MAX_ATTEMPTS = 10
DEFAULT_TIMEOUT_SECONDS = 180
DEFAULT_LEASE_SECONDS = 30.0


class Limits(NamedTuple):
    """Attempts (0 for no limit), and seconds of an attempt and of a lease."""

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    lease_seconds: float = DEFAULT_LEASE_SECONDS
