"""Errors raised on purpose. Messages are one line and never contain passwords."""


class DrainError(Exception):
    """Root of all errors; the command line prints it and exits 1."""


class ConfigError(DrainError):
    """A setting is missing or invalid."""


class PortTakenError(ConfigError):
    """Another program uses the port."""


class OwnedByAnotherError(ConfigError):
    """Another database feeds this namespace."""


class SchemaError(DrainError):
    """The schema is missing or has another version."""


class StageError(DrainError, ValueError):
    """Invalid job; the caller's transaction is unchanged."""


class IdempotencyConflictError(StageError):
    """The idempotency key's job has another name or other arguments."""


class SelectionError(DrainError, ValueError):
    """Invalid selection of jobs; the caller's transaction is unchanged."""


class ProgressError(DrainError, ValueError):
    """A job reported invalid progress."""


class ConnectableError(StageError, SelectionError):
    """Unsupported type of connection."""


class UnavailableError(DrainError):
    """PostgreSQL or Redis is unreachable or too slow."""


class UnknownJobError(DrainError, LookupError):
    """No table holds a job with this id."""


class ResultError(DrainError):
    """The job has no result, or not yet."""


class NotFinishedError(ResultError, TimeoutError):
    """The job has not finished yet."""


class DeadJobError(ResultError):
    """The job is dead, cancelled or expired; the message has its last error."""


class NoResultError(ResultError):
    """The job finished, but its result was not kept."""


class UndeliverableError(DrainError):
    """A staged row cannot be encoded for RQ; it moves to `dead_jobs`."""


class JobModuleError(ConfigError):
    """A module in DRAIN_JOBS cannot be imported."""


class EmbeddedError(DrainError):
    """An embedded server was not found or did not start."""


class HarnessError(DrainError):
    """A test misuses `drain.contrib.testing`."""
