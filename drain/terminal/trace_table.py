"""Trace of one job, for people: a line for each hop, the longest step marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from drain.visible import visible
from drain.wording import duration

# Shortest step that is worth a mark.
_MARKED_SECONDS = 0.001
_HINT = (
    "only the times of the tables are known: `drain run --trace` and `drain work --trace` note those of the processes, "
    "for an hour"
)


def show_trace(job: dict[str, Any], hops: Sequence[dict[str, Any]], *, has_noted: bool) -> None:
    """Print the hops of a job; a hint goes to standard error if no process has noted any."""
    console = Console(highlight=False, markup=False)
    console.print(f"job {job['id']}, {visible(job['job_name'])}, {job['state']}", soft_wrap=True)
    longest = max((hop["step_seconds"] for hop in hops), default=0.0)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("hop", no_wrap=True)
    table.add_column("at", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    for hop in hops:
        is_marked = hop["step_seconds"] == longest >= _MARKED_SECONDS
        at = hop["at"].isoformat(sep=" ", timespec="milliseconds")
        step = Text(_length(hop["step_seconds"]), style="bold yellow" if is_marked else "")
        table.add_row(hop["hop"], at, _length(hop["seconds"]), step)
    console.print(table)
    if not has_noted:
        click.echo(_HINT, err=True)


def _length(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.1f} ms"
