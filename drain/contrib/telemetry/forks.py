"""Processes forked for one job, which end without cleanup.

A library's thread would lose unsent data, so each process flushes before its first job ends.
"""

from __future__ import annotations

import os

# RQ's forked process may import this module only later.
_is_first = True


def _note_fork() -> None:
    global _is_first  # noqa: PLW0603
    _is_first = True


os.register_at_fork(after_in_child=_note_fork)


def is_first_job() -> bool:
    """Return True once per process; call at the end of each attempt."""
    global _is_first
    was_first, _is_first = _is_first, False
    return was_first
