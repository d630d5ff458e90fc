"""Tests of code that stages jobs: within the test's own transaction, without Redis, a leader or a worker.

    def test_an_order_sends_a_receipt(session, staged):
        buy(session, order_id=42)
        staged.assert_one(send_receipt, args=[42])
        staged.run(check=True)

    plugin   the fixtures `staged`, `drain_connection` and `drain_servers`, and the marker of that name, for pytest
    staged   `Staged`: what was staged, and what becomes of it
    rows     jobs that wait, as a test sees them
    adopted  the test's own connection, of whatever library, and the session below it
    nested   connections on that session whose transactions are savepoints
    leader   what a leader does: rows that are due move in flight
    worker   what a worker does: claim, run, decide, record
    lending  the connection of a job's own transaction
    clock    virtual time
    servers  `drain_servers`: real servers, a leader and a worker

What always holds: nothing here commits, or ends the test's transaction. The statements and the decisions are those of
leader and worker; what is left out is Redis, heartbeats and other processes. Importing this package imports none of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drain.contrib.testing.rows import StagedJob
    from drain.contrib.testing.servers import DrainServers
    from drain.contrib.testing.staged import Staged
    from drain.contrib.testing.worker import Ran

_MODULES = {"DrainServers": "servers", "Ran": "worker", "Staged": "staged", "StagedJob": "rows"}
__all__ = ["DrainServers", "Ran", "Staged", "StagedJob"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name at its first use: pytest imports this package for everybody who has job-drain."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"drain.contrib.testing.{_MODULES[name]}")
        return getattr(module, name)
