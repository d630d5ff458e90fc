"""No queue at all: processes that call the job's function in a loop until they are ended."""

from __future__ import annotations

from benchmarks.peers import work


def prepare() -> None:
    """Nothing to prepare."""


def fill(_name: str, _jobs: int) -> None:
    """Nothing to fill: the loops go on for as long as they are measured."""


def main() -> None:
    """Compute."""
    while True:
        work.spin()
        work.done()


if __name__ == "__main__":
    main()
