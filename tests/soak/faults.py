"""What each fault does, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from programs.child import Child
from redis import Redis
from redis.exceptions import ResponseError

from drain.database import postgres
from drain.embedded import EmbeddedRedis, signals
from tests.soak.fleet import Fleet
from tests.soak.plan import FLEET, POSTGRES, REDIS, SESSIONS, Fault, Kind
from tests.soak.servers import Servers

End = Callable[[], object]

_DISCONNECT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND %s IN (application_name, 'everybody')
"""


class Faults:
    """Does to the fleet and to the servers what a fault says.

    Args:
        fleet: The processes.
        servers: Both of them.
    """

    def __init__(self, fleet: Fleet, servers: Servers) -> None:
        self._fleet = fleet
        self._servers = servers

    def now(self) -> datetime:
        """Time by the clock of PostgreSQL."""
        return datetime.now(UTC) + timedelta(seconds=self._servers.clock.seconds)

    def begin(self, fault: Fault) -> End | None:
        """Do it.

        Returns:
            What ends it; None if there was nobody to do it to.
        """
        if fault.target == REDIS:
            return self._redis(fault.kind)
        if fault.target == POSTGRES:
            return self._postgres(fault.kind)
        if fault.target == FLEET:
            self._fleet.deploy()
            return _nothing
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
                return self._fleet.pause(child)

    def _redis(self, kind: Kind) -> End | None:
        redis = self._servers.redis
        match kind:
            case Kind.FULL:
                return self._fill(REDIS, _nothing)
            case Kind.SLOW:
                return self._servers.slow_down(REDIS)
            case Kind.FLUSH:
                return _nothing if _flush(redis.url) else None
            case Kind.PAUSE:
                signals.pause(redis.pid)
                return partial(signals.resume, redis.pid)
            case Kind.EMPTY:
                redis.kill()
                snapshot_of(redis).unlink(missing_ok=True)
            case _:
                redis.kill()
        return redis.start

    def _postgres(self, kind: Kind) -> End | None:
        servers = self._servers
        end: End | None = _nothing
        match kind:
            case Kind.PAUSE:
                signals.pause(servers.postgres.pid)
                end = partial(signals.resume, servers.postgres.pid)
            case Kind.RESTART:
                servers.restart()
            case Kind.PROMOTE:
                end = servers.fail_over()
            case Kind.CLOCK:
                end = _nothing if servers.clock.step() else None
            case Kind.MIGRATE:
                end = _nothing if servers.migrate() else None
            case Kind.SLOW:
                end = servers.slow_down(POSTGRES)
            case Kind.FULL:
                # It ends if it cannot write its log.
                end = self._fill(POSTGRES, servers.restart)
            case _:
                servers.postgres.kill()
                end = servers.restart
        return end

    def _fill(self, target: str, then: End) -> End | None:
        disk = self._servers.disks[target]
        if not disk.can_be_full:
            return None
        disk.fill()

        def end() -> None:
            disk.free()
            then()

        return end

    def _disconnect(self, whom: str) -> End | None:
        with closing(postgres.connect(self._servers.database_url, "soak")) as connection:
            found = connection.execute(_DISCONNECT, (whom,)).rowcount
        return _nothing if found else None


def _flush(redis_url: str) -> bool:
    with Redis.from_url(redis_url) as client, suppress(ResponseError):
        client.flushall()
        return True
    # A Redis that cannot save refuses.
    return False


def snapshot_of(redis: EmbeddedRedis) -> Path:
    """Where Redis keeps what it saves."""
    return redis.directory / "dump.rdb"


def _nothing() -> None:
    """What is over as soon as it is done."""
