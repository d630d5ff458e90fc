"""The jobs of `jobs_that_share`, with hooks that note the rows committed by then."""

from typing import Any

import drain
from tests.jobs_that_share import act, own_connection

__all__ = ["act"]

MODULE = "tests.jobs_that_share_with_hooks"
TABLE = "CREATE TABLE ends (label text, word text, rows bigint)"


def _note(label: Any, word: str) -> None:
    own_connection().execute(
        "INSERT INTO ends SELECT %s, %s, count(*) FROM written WHERE label = %s", [label, word, label]
    )


@drain.on_finish
def finished(job: drain.CurrentJob) -> None:
    _note(job.args[0], "finished")


@drain.on_dead
def dead(job: drain.CurrentJob, _reason: str) -> None:
    _note(job.args[0], "dead")
