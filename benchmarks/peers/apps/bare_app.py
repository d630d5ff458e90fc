"""No queue: processes that call the job's function in a loop until they are stopped."""

from __future__ import annotations

import psycopg

from benchmarks.peers import stepped, work


def prepare() -> None:
    """Do nothing."""


def fill(_name: str, _jobs: int) -> None:
    """Do nothing: the loops run for as long as they are measured."""


def cost(steps: int) -> None:
    """Commit what a step writes, without a step."""
    with psycopg.connect(work.database_url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY)")
        for title, statement in (
            ("INSERT", "INSERT INTO bare DEFAULT VALUES"),
            ("UPDATE", work.UPDATE.format(0)),
        ):
            stepped.time_each(f"bare commit, one {title}", steps, lambda _: connection.execute(statement))  # noqa: B023


def main() -> None:
    """Run the job's function in an endless loop."""
    while True:
        work.spin()
        work.done()


if __name__ == "__main__":
    main()
