"""Random graphs: no job runs early, none is stuck.

DRAIN_TEST_GRAPHS=10000 tries more of them.
"""

import os

import pytest

from drain.tables import edge_looks
from tests.flows import flows
from tests.random_flows import try_graphs

_GRAPHS = int(os.environ.get("DRAIN_TEST_GRAPHS", "15"))


def test_random_graphs_neither_hang_nor_run_early(database_url: str, redis_url: str) -> None:
    with flows(database_url, redis_url) as jobs:
        assert try_graphs(jobs, graphs=_GRAPHS, seed=1) == []


def test_a_look_that_forgets_running_transactions_is_found(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        edge_looks,
        "LOOK",
        edge_looks.LOOK.replace("unnest(%(running)s::xid8[])", "unnest((%(running)s::xid8[])[2:1])"),
    )
    with flows(database_url, redis_url) as jobs:
        assert try_graphs(jobs, graphs=60, seed=1)
