"""Limits of a claim, from the registration of its job, or the defaults."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_MAX_ATTEMPTS = 10
DEFAULT_TIMEOUT_SECONDS = 180
DEFAULT_LEASE_SECONDS = 30.0


class Limits(NamedTuple):
    """Limits that a registration sets for the claims of its job.

    Attributes:
        max_attempts: Number of attempts after which a failing job is dead; 0 for no limit.
        timeout_seconds: Time limit of one attempt.
        lease_seconds: Length of the lease of a claim without a heartbeat.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    lease_seconds: float = DEFAULT_LEASE_SECONDS
