"""Forked processes, which end without clean-up: RQ's worker forks one for each job, `drain work` for an isolated job.

What a library sends from a thread of its own would be lost there. So it is sent before the first job of each process
ends; a process of `drain work` that goes on pays for that once.
"""

from __future__ import annotations

import os

# A process that RQ's worker has forked may import this module only after that.
_is_first = True


def _note_fork() -> None:
    global _is_first  # noqa: PLW0603
    _is_first = True


os.register_at_fork(after_in_child=_note_fork)


def is_first_job() -> bool:
    """Return whether this process has not asked before; to be called at the end of each attempt."""
    global _is_first
    was_first, _is_first = _is_first, False
    return was_first
