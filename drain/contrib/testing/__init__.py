"""Tests of code that stages jobs: within the test's own transaction, without Redis, a leader or a worker.

    def test_an_order_sends_a_receipt(session, staged):
        buy(session, order_id=42)
        staged.assert_one(send_receipt, args=[42])
        staged.run(check=True)

    plugin   pytest: fixtures `staged`, `drain_connection` and `drain_servers`, and the latter's marker
    staged   `Staged`: staged jobs, and their outcomes
    rows     waiting jobs, as a test sees them
    adopted  the test's own connection, of any library
    nested   connections on it, with savepoints as transactions
    leader   the leader's part: due rows move in flight
    worker   the worker's part: claim, run, decide, record
    lending  the connection of a job's own transaction
    clock    virtual time
    servers  `drain_servers`: real servers, a leader and a worker

Nothing commits or ends the test's transaction. Statements and decisions are those of leader and worker; Redis,
heartbeats and other processes are left out.
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
        """Import a name at first use: pytest imports this package wherever job-drain is installed."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"drain.contrib.testing.{_MODULES[name]}")
        return getattr(module, name)
