"""A first job: `python -m examples.hello World You` stages two jobs, each of which prints a greeting.

The workers of docker-compose.yml run these jobs by default.
"""

import os
import sys

import psycopg

from drain import job


@job(max_attempts=3)
def greet(name: str) -> None:
    """Print a greeting."""
    print(f"hello, {name}", flush=True)


if __name__ == "__main__":
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"]) as connection:
        for name in sys.argv[1:] or ["World"]:
            greet.stage(connection, name)
