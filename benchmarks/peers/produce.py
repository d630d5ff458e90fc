"""Program: `python -m benchmarks.peers.produce APP RATE SECONDS THREADS`, in the environment of a peer.

Commits transactions of an application at a steady rate, each with a row and a job, numbered from 1. The file `commits`
then holds the time when each commit returned, by job number.
"""

from __future__ import annotations

import sys
import threading
from array import array
from importlib import import_module
from time import monotonic, sleep
from typing import TYPE_CHECKING

from benchmarks.peers import work

if TYPE_CHECKING:
    from collections.abc import Callable


def main(app: str, rate: str, seconds: str, threads: str) -> None:
    """Commit for `seconds`; a thread that is late does not wait."""
    module = import_module(f"benchmarks.peers.apps.{app}")
    total = int(float(rate) * float(seconds))
    committed = array("d", bytes(8 * (total + 1)))
    barrier = threading.Barrier(int(threads))
    began: list[float] = []

    def run(first: int, commit: Callable[[int], float]) -> None:
        barrier.wait()
        began.append(monotonic() + 0.1)
        for number in range(first, total + 1, int(threads)):
            sleep(max(0.0, began[0] + number / float(rate) - monotonic()))
            # A peer that cannot keep up gets half as long again, and no more.
            if monotonic() > began[0] + 1.5 * float(seconds):
                return
            committed[number] = commit(number)

    running = [
        threading.Thread(target=run, args=(first + 1, module.producer())) for first in range(int(threads))
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    (work.directory() / work.COMMITS).write_bytes(committed.tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
