"""What processes, servers and files take, sampled while faults come."""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
from redis import Redis
from redis.exceptions import RedisError

from drain.database import postgres
from drain.errors import UnavailableError
from tests.soak.flat import Sample
from tests.soak.fleet import Fleet
from tests.soak.plan import ENDURING
from tests.soak.servers import BALLAST, Servers

Values = dict[str, dict[str, float]]

_SOAK = "the soak"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512
# With indexes and TOAST; partitions count toward their table.
_TABLES = """
SELECT coalesce(pg_partition_root(oid)::oid, oid)::regclass::text, sum(pg_total_relation_size(oid))
FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace GROUP BY 1
"""
_DATABASE = """
SELECT pg_current_wal_lsn() - '0/0', (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    (SELECT sum(n_dead_tup) FROM pg_stat_user_tables), pg_database_size(current_database())
"""


class Samples:
    """Keeps samples in a file, so that this process does not grow by them."""

    def __init__(self, directory: Path, servers: Servers, fleet: Fleet) -> None:
        self._directory = directory
        self._file = directory / "samples.jsonl"
        self._servers = servers
        self._fleet = fleet
        self._wal: tuple[float, float] | None = None

    def take(self, seconds: float) -> None:
        """Take one; leave out what cannot be asked right now."""
        values: Values = defaultdict(dict)
        self._ask_processes(values)
        self._ask_files(values)
        parts: tuple[Callable[[Values, float], None], ...] = (self._ask_database, self._ask_redis)
        for ask in parts:
            with suppress(psycopg.Error, UnavailableError, RedisError):
                ask(values, seconds)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps((seconds, values)) + "\n")

    def read(self) -> Iterator[Sample]:
        """Yield all of them."""
        if self._file.exists():
            with self._file.open(encoding="utf-8") as file:
                yield from (Sample(*json.loads(line)) for line in file)

    def _ask_processes(self, values: Values) -> None:
        children = {name: self._fleet.child(name) for name in ENDURING}
        trees = {name: [child.pid, *child.children()] for name, child in children.items() if child}
        for name, pids in {**trees, _SOAK: [os.getpid()]}.items():
            # One may end right now.
            with suppress(OSError):
                values["memory"][name] = sum(map(_resident_bytes, pids))
                values["numbers"][f"open files of {name}"] = sum(map(_open_files, pids))
        values["numbers"][f"threads of {_SOAK}"] = threading.active_count()

    def _ask_files(self, values: Values) -> None:
        disks = {path for path in self._directory.iterdir() if path.is_dir()}
        values["disk"] = {
            "PostgreSQL and Redis": sum(map(_bytes_below, disks)),
            "logs": sum(path.stat().st_size for path in self._directory.iterdir() if path.is_file()),
        }

    def _ask_database(self, values: Values, seconds: float) -> None:
        with closing(postgres.connect(self._servers.database_url, "soak")) as connection:
            ((wal, sessions, dead, size),) = connection.execute(_DATABASE).fetchall()
            tables = {name: float(bytes_) for name, bytes_ in connection.execute(_TABLES)}
        values["tables"] = {**tables, "the database": float(size)}
        values["numbers"]["sessions of PostgreSQL"] = sessions
        values["dead rows"]["of all tables"] = float(dead or 0)
        before, self._wal = self._wal, (seconds, float(wal))
        if before and seconds > before[0]:
            values["WAL a second"]["bytes"] = max(0.0, (float(wal) - before[1]) / (seconds - before[0]))

    def _ask_redis(self, values: Values, _seconds: float) -> None:
        with Redis.from_url(self._servers.redis.url, socket_timeout=1) as redis:
            info = redis.info()
            values["memory"]["Redis"] = info["used_memory"]
            values["numbers"]["connections of Redis"] = info["connected_clients"]
            values["numbers"]["keys of Redis"] = redis.dbsize()


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def _open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _bytes_below(directory: Path) -> int:
    found = 0
    for path, _, names in os.walk(directory):
        for name in names:
            if name != BALLAST:
                with suppress(OSError):
                    found += Path(path, name).lstat().st_blocks * _BLOCK_BYTES
    return found
