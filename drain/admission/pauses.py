"""Pauses that hold now, as the leader asks for them: of a queue, of names of jobs, of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from drain.tables.pauses import Pause


class Paused:
    """Pauses that held when they were read.

    Args:
        pauses: From `drain.tables.pauses.read`.
    """

    def __init__(self, pauses: Sequence[Pause] = ()) -> None:
        self._pauses = tuple(pauses)
        self._queues = frozenset(
            pause.queue for pause in pauses if pause.job_name is None and pause.key is None
        )
        # A pause of a job name alone, or of a key alone, holds in all queues: those are under None.
        self._names: dict[str | None, set[str]] = {}
        self._keys: dict[str | None, dict[str, datetime | None]] = {}
        # Pauses of the jobs that have both a name and a key.
        self._both: set[tuple[str | None, str, str]] = set()
        for pause in pauses:
            self._add(pause)

    def _add(self, pause: Pause) -> None:
        if pause.job_name is not None and pause.key is not None:
            self._both.add((pause.queue, pause.job_name, pause.key))
        elif pause.job_name is not None:
            self._names.setdefault(pause.queue, set()).add(pause.job_name)
        elif pause.key is not None:
            keys = self._keys.setdefault(pause.queue, {})
            keys[pause.key] = _later(keys[pause.key], pause.until) if pause.key in keys else pause.until

    def __bool__(self) -> bool:
        return bool(self._pauses)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Paused) and self._pauses == other._pauses

    def __hash__(self) -> int:
        return hash(self._pauses)

    def queue(self, name: str) -> bool:
        """Return True if nothing of the queue starts."""
        return name in self._queues

    def job_names(self, queue: str) -> frozenset[str]:
        """Names of jobs of which nothing starts in the queue."""
        return frozenset(self._names.get(None, ())) | frozenset(self._names.get(queue, ()))

    def keys(self, queue: str) -> Mapping[str, datetime | None]:
        """Keys of which nothing starts in the queue, each with the end of its pause; None for no end."""
        everywhere, here = self._keys.get(None, {}), self._keys.get(queue, {})
        both = {key: _later(everywhere[key], here[key]) for key in everywhere.keys() & here.keys()}
        return everywhere | here | both

    def pairs(self, queue: str) -> frozenset[tuple[str, str]]:
        """Collect keys, each with a name of jobs, of which nothing starts in the queue."""
        return frozenset((key, name) for where, name, key in self._both if where in (None, queue))

    def names_any(self, queue: str) -> bool:
        """Return True if a pause holds for some jobs or keys of the queue, so that each of its rows is looked at."""
        wheres = (None, queue)
        return any(where in self._names or where in self._keys for where in wheres) or any(
            where in wheres for where, _, _ in self._both
        )

    def applies(self, queue: str, job_name: str, key: str | None) -> bool:
        """Return True if a job of this queue, name and key does not start."""
        if queue in self._queues:
            return True
        return any(
            job_name in self._names.get(where, ())
            or (
                key is not None and (key in self._keys.get(where, ()) or (where, job_name, key) in self._both)
            )
            for where in (None, queue)
        )

    @property
    def queues(self) -> frozenset[str] | None:
        """Names of all queues that a pause names; None if some pause holds in all queues."""
        names = [pause.queue for pause in self._pauses]
        return None if None in names else frozenset(name for name in names if name is not None)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return None if one is None or other is None else max(one, other)
