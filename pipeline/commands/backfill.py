"""`drain backfill`."""

from __future__ import annotations

import click


@click.command()
def backfill() -> None:
    """Stage a job for each row of a source."""
