"""What each fault does, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from programs.child import Child
from redis import Redis

from drain.database import postgres
from drain.embedded import EmbeddedRedis, Services, signals
from tests.soak.fleet import Fleet
from tests.soak.plan import POSTGRES, REDIS, SESSIONS, Fault, Kind

End = Callable[[], object]

_DISCONNECT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND %s IN (application_name, 'everybody')
"""


class Faults:
    """Does to the fleet and to the servers what a fault says.

    Args:
        fleet: The processes.
        servers: Both of them; Redis saves what it holds every second.
    """

    def __init__(self, fleet: Fleet, servers: Services) -> None:
        self._fleet = fleet
        self._servers = servers

    def begin(self, fault: Fault) -> End | None:
        """Do it.

        Returns:
            What ends it; None if there was nobody to do it to.
        """
        if fault.target == REDIS:
            return self._redis(fault.kind)
        if fault.target == POSTGRES:
            return self._postgres(fault.kind)
        if fault.target in SESSIONS and fault.kind is Kind.DISCONNECT:
            return self._disconnect(fault.target)
        child = self._fleet.child(fault.target)
        return None if child is None or child.exit_code() is not None else self._program(fault.kind, child)

    def _program(self, kind: Kind, child: Child) -> End | None:
        match kind:
            case Kind.KILL:
                self._fleet.kill(child.name)
                return partial(self._fleet.start, child.name)
            case Kind.MACHINE:
                # Standing still, it does not see them die.
                child.pause()
                signals.send(child.children(), signal.SIGKILL)
                self._fleet.kill(child.name)
                return partial(self._fleet.start, child.name)
            case Kind.TERMINATE:
                self._fleet.terminate(child.name)
                return _nothing
            case Kind.HORSE:
                horses = child.children()
                signals.send(horses, signal.SIGKILL)
                return _nothing if horses else None
            case _:
                child.pause()
                return child.resume

    def _redis(self, kind: Kind) -> End:
        redis = self._servers.redis
        match kind:
            case Kind.FLUSH:
                with Redis.from_url(redis.url) as client:
                    client.flushall()
                return _nothing
            case Kind.PAUSE:
                signals.pause(redis.pid)
                return partial(signals.resume, redis.pid)
            case Kind.EMPTY:
                redis.kill()
                snapshot_of(redis).unlink(missing_ok=True)
            case _:
                redis.kill()
        return redis.start

    def _postgres(self, kind: Kind) -> End:
        server = self._servers.postgres
        match kind:
            case Kind.PAUSE:
                signals.pause(server.pid)
                return partial(signals.resume, server.pid)
            case Kind.RESTART:
                server.restart()
                return _nothing
            case _:
                server.kill()
                return server.start

    def _disconnect(self, whom: str) -> End | None:
        with closing(postgres.connect(self._servers.database_url, "soak")) as connection:
            found = connection.execute(_DISCONNECT, (whom,)).rowcount
        return _nothing if found else None


def snapshot_of(redis: EmbeddedRedis) -> Path:
    """Where Redis keeps what it saves."""
    return redis.directory / "dump.rdb"


def _nothing() -> None:
    """What is over as soon as it is done."""
