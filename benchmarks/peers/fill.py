"""Program: `python -m benchmarks.peers.fill APP WORK JOBS`, in the environment of a peer."""

from __future__ import annotations

import sys
from importlib import import_module


def main(app: str, work: str, jobs: str, *prepare: str) -> None:
    """Fill the queue; with a fourth argument, create the peer's tables first."""
    module = import_module(f"benchmarks.peers.apps.{app}")
    if prepare:
        module.prepare()
    if int(jobs):
        module.fill(work, int(jobs))


if __name__ == "__main__":
    main(*sys.argv[1:])
