"""Short form of the benchmark on both kinds of server, side by side."""

from __future__ import annotations

from benchmarks import figures, servers
from benchmarks.peers import quick


def section() -> str:
    """Measure, and make the section of RESULTS.md."""
    measured = {}
    for services in servers.of_both_kinds():
        where = servers.title(services)
        figures.say(where)
        measured[where] = quick.measure(services)
    names = list(dict.fromkeys(name for found in measured.values() for name in found))
    rows = [
        (name, *(f"{found[name]:.3g}" if name in found else "" for found in measured.values()))
        for name in names
    ]
    table = figures.table(("ratio", *measured), rows)
    return (
        "# The short form on both kinds of server\n\n"
        "What `make bench-check` compares, on each server in turn: jobs that do nothing on two processes of each "
        "peer, the drain, and a plain RQ job beside ours on RQ's own workers. One round of a few seconds each, so a "
        "figure may be a fifth off."
        f"\n\n{table}"
    )
