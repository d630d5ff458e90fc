"""Sizes of `make bench`: full, and short as a smoke test of all parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How much each part measures.

    Attributes:
        jobs: Jobs of one round of the drain.
        rounds: Rounds of each figure of the drain.
        backlog: Rows of the large backlog.
        held_backlog: Rows drained under a held snapshot.
        seconds: Duration of the latency measurement.
        scale: Factor of the sizes of bulk work; below 1, admission is measured in its short form.
        peer_rounds: Rounds with the peers.
        peer_seconds: Duration of one run with the peers.
        scheduled: Jobs scheduled for tomorrow, in addition to the measured ones.
        hold_seconds: Duration of a held snapshot with the peers.
        stock_jobs: Jobs of one burst on RQ's own workers.
        check_rounds: Rounds recorded for `make bench-check`.
    """

    jobs: int = 100_000
    rounds: int = 7
    backlog: int = 3_000_000
    held_backlog: int = 2_000_000
    seconds: float = 30
    scale: float = 1.0
    peer_rounds: int = 5
    peer_seconds: float = 6
    scheduled: int = 5_000_000
    hold_seconds: float = 600
    stock_jobs: int = 100
    check_rounds: int = 9


SHORT = Sizes(
    jobs=5000,
    rounds=1,
    backlog=20_000,
    held_backlog=20_000,
    seconds=3,
    scale=0.002,
    peer_rounds=1,
    peer_seconds=0.7,
    scheduled=20_000,
    hold_seconds=3,
    stock_jobs=10,
    check_rounds=1,
)
