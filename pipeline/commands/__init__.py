"""Commands of `drain` that run on Spark; each parses its arguments, makes one call, and shows the result.

    options     options that all of them share: where Spark runs, and its settings
    backfill    `drain backfill`
    replay      `drain replay`
    reconcile   `drain reconcile`
    archive     `drain archive`
    stats       `drain stats`
    audit       `drain audit --expected`

None of these modules imports Spark before its command is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.commands.archive import archive
from pipeline.commands.backfill import backfill
from pipeline.commands.reconcile import reconcile
from pipeline.commands.replay import replay
from pipeline.commands.stats import stats

if TYPE_CHECKING:
    import click

COMMANDS: tuple[click.Command, ...] = (archive, backfill, reconcile, replay, stats)
