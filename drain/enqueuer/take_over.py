"""Take-over of a namespace from an installation that is gone: `drain run --take-over`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from drain.database.postgres import Connection
from drain.errors import ConfigError
from drain.wire import Producer

log = logging.getLogger(__name__)


def take_over(connection: Connection, redis: Producer, installation: str, alive: Callable[[], None]) -> None:
    """Remove that installation's job ids from Redis, and free its names.

    Args:
        connection: Kept alive meanwhile.
        redis: Identified as this database.
        installation: UUID of the other database.
        alive: Called between slices of a long list.

    Raises:
        ConfigError: The installation is this database.
    """
    if installation == redis.installation:
        raise ConfigError(
            "--take-over names this very database; it is for the installation of one that is gone"
        )
    removed = 0
    for number in redis.remove_ids_of(installation):
        removed += number
        # Neither the watchdog nor the idle timeout may strike meanwhile.
        alive()
        connection.execute("SELECT 1")
    taken = redis.take_over(installation)
    if taken:
        log.info(
            "taken over from installation %s: %d names of its namespace and queues; removed %d ids of its jobs",
            installation,
            taken,
            removed,
            extra={"event": "taken_over"},
        )
    else:
        log.warning("nothing in Redis is fed by installation %s", installation, extra={"event": "taken_over"})
