"""Limits of a claim: those of its job's registration, or the defaults."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_MAX_ATTEMPTS = 10
DEFAULT_TIMEOUT_SECONDS = 180
DEFAULT_LEASE_SECONDS = 30.0


class Limits(NamedTuple):
    """What a claim has to know of a registration.

    Attributes:
        max_attempts: Claims that may fail before the job is dead; 0 for no limit.
        timeout_seconds: How long one attempt may run.
        lease_seconds: For how long the claim holds without a heartbeat.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    lease_seconds: float = DEFAULT_LEASE_SECONDS
