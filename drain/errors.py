"""Every error that job-drain raises on purpose, under one root.

The text of an error is one line that says what is wrong and what to do about it. No text holds a password.
"""


class DrainError(Exception):
    """Root of all errors of job-drain; the command line prints its text and exits 1."""


class ConfigError(DrainError):
    """A setting is missing or cannot be used as it is."""


class PortTakenError(ConfigError):
    """Another program listens on the port."""


class OwnedByAnotherError(ConfigError):
    """Another database feeds this namespace of Redis."""


class SchemaError(DrainError):
    """The database has no schema of job-drain, or another version of it."""


class StageError(DrainError, ValueError):
    """A job cannot be staged as it was given; the caller's transaction is untouched."""


class IdempotencyConflictError(StageError):
    """The idempotency key belongs to a job with another name or other arguments."""


class SelectionError(DrainError, ValueError):
    """Jobs cannot be selected as they were named; the caller's transaction is untouched."""


class ProgressError(DrainError, ValueError):
    """A job has reported something as its progress that cannot be one."""


class ConnectableError(StageError, SelectionError):
    """The connection that was passed is none on which statements of job-drain can be sent."""


class UnavailableError(DrainError):
    """PostgreSQL or Redis cannot be reached, or did not answer in time."""


class UnknownJobError(DrainError, LookupError):
    """No job with this id is in any of the four tables."""


class ResultError(DrainError):
    """There is no result of a job, or none yet."""


class NotFinishedError(ResultError, TimeoutError):
    """The job is not finished yet."""


class DeadJobError(ResultError):
    """The job will not finish: it is dead, cancelled, or has expired. The text has its last error."""


class NoResultError(ResultError):
    """The job is finished, and no result of it was kept."""


class UndeliverableError(DrainError):
    """A staged row cannot be written in RQ's format; the enqueuer moves it to `dead_jobs`."""


class JobModuleError(ConfigError):
    """A module named in DRAIN_JOBS does not import."""


class EmbeddedError(DrainError):
    """An embedded PostgreSQL or Redis could not be found or started."""


class HarnessError(DrainError):
    """A test uses `drain.contrib.testing` in a way that cannot work."""
