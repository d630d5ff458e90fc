"""Untracked ids at a list's head: moved, refused or dropped."""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import redis

from drain.wire import scripts
from drain.wire.calls import Classification, Kind, classify_ids
from drain.wire.keys import failed_key, queue_key

log = logging.getLogger(__name__)

# 1 to 2 ms of Redis' time.
_PAGE = 500
# Searched for ours behind a page of foreign ids; two million take 40 s.
_SEARCHED = 50_000
_SLICE = 5000
# Each costs Redis a search for its place.
_BROUGHT = 100
# A year, as in RQ.
_KEPT_SECONDS = 31_536_000
_REPORT_SECONDS = 600.0
# Logged individually per period; the rest are counted.
_REPORT_PERIOD_SECONDS = 60.0
_REPORTS = 10
REFUSAL = "refused by drain work: only job-drain's tracked jobs run in this queue (--only-tracked)"


class Strangers:
    """Clears lists' heads for one worker; redis errors propagate."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._redis = client
        self._prefix = prefix
        self._remove = client.register_script(scripts.load("remove_strangers"))
        self._bring_forward = client.register_script(scripts.load("bring_forward"))
        # Where the next search starts.
        self._searched: dict[str, int] = {}
        self._reports = _Reports()

    def clear_head(
        self, queue: str, ours: re.Pattern[bytes], installation: str, *, only_tracked: bool
    ) -> tuple[list[tuple[bytes, int]], bool]:
        """Clear a list's head of other jobs.

        Foreign ids move to the tail, or stay if alone. With `only_tracked`, plain jobs move to RQ's failed registry,
        and ids without a job are dropped.

        Returns:
            Our popped deliveries of older namespaces, with job ids; and whether only foreign ids remain.
        """
        key = queue_key(queue)
        page: Any = self._redis.lrange(key, 0, _PAGE - 1)
        copies = Counter(rq_id for rq_id in page if not ours.fullmatch(rq_id))
        unknown = list(copies)
        jobs = dict(zip(unknown, classify_ids(self._redis, unknown, installation), strict=True))
        actions = {
            rq_id: action
            for rq_id, job in jobs.items()
            if (action := _action(job.kind, only_tracked=only_tracked))
        }
        foreign = [rq_id for rq_id, job in jobs.items() if job.kind is Kind.FOREIGN]
        stays = len(page) < _PAGE and set(page) <= {*foreign, *actions}
        if foreign:
            self._reports.foreign(queue, foreign[0], jobs[foreign[0]])
        if not stays and set(page) == set(foreign) and self._find_ours(key):
            return [], False
        # The list is then skipped for a moment.
        is_foreign = stays or set(page) == set(foreign)
        if not stays:
            actions |= dict.fromkeys(foreign, "tail")
        done = self._act(queue, actions, copies)
        for action in ("refuse", "drop"):
            self._reports.removed(queue, [rq_id for rq_id in done if actions[rq_id] == action], action)
        popped = [(rq_id, jobs[rq_id].job_id) for rq_id in done if actions[rq_id] == "pop"]
        return popped, bool(foreign) and is_foreign

    def refuse(self, queue: str, rq_id: bytes) -> None:
        """Move a plain job to RQ's failed registry."""
        self._reports.removed(queue, self._act(queue, {rq_id: "refuse"}, {rq_id: 1}), "refuse")

    def report_too_long(self, queue: str, beginning: bytes) -> None:
        """Log a dropped id."""
        self._reports.removed(queue, [beginning], "drop long")

    def _find_ours(self, key: str) -> bool:
        """Bring our ids to the head, first from the tail, where they are pushed."""
        # A page has moved to the tail since.
        begin = max(_PAGE, self._searched.pop(key, 0) - _PAGE)
        for first in (-_SLICE, *range(begin, begin + _SEARCHED, _SLICE)):
            found: Any = self._bring_forward([key], [self._prefix, first, _SLICE, _BROUGHT])
            if found > 0:
                return True
            if found < 0:
                return False
        self._searched[key] = begin + _SEARCHED
        return False

    def _act(self, queue: str, actions: dict[bytes, str], copies: Mapping[bytes, int]) -> list[bytes]:
        """Act on ids; returns those found."""
        if not actions:
            return []
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        until = int(time.time()) + _KEPT_SECONDS
        words: list[Any] = [now, until, _KEPT_SECONDS, zlib.compress(REFUSAL.encode())]
        for rq_id, action in actions.items():
            words += [action, copies[rq_id], rq_id]
        done: Any = self._remove(keys=[queue_key(queue), failed_key(queue)], args=words)
        return list(done)


class _Reports:
    def __init__(self) -> None:
        self._foreign_at: dict[str, float] = {}
        self._period_began = -_REPORT_PERIOD_SECONDS
        self._written = self._not_written = 0

    def foreign(self, queue: str, rq_id: bytes, job: Classification) -> None:
        now = monotonic()
        if now - self._foreign_at.get(queue, -_REPORT_SECONDS) < _REPORT_SECONDS:
            return
        self._foreign_at[queue] = now
        log.error(
            "queue %s holds jobs of another database, such as %s of installation %s: they are left to its own "
            "workers; give the queues of the two databases different names",
            queue,
            _shown(rq_id),
            job.installation or "unknown",
            extra={"event": "foreign_job", "queue": queue},
        )

    def removed(self, queue: str, rq_ids: Sequence[bytes], action: str) -> None:
        word, reason = {
            "refuse": ("refused", "not tracked, now in RQ's FailedJobRegistry"),
            "drop": ("dropped", "no such job"),
            "drop long": ("dropped", "longer than 1,000 bytes; this is its beginning"),
        }[action]
        for place, rq_id in enumerate(rq_ids):
            now = monotonic()
            if now - self._period_began >= _REPORT_PERIOD_SECONDS:
                self._write_count()
                self._period_began, self._written = now, 0
            if self._written == _REPORTS:
                self._not_written += len(rq_ids) - place
                return
            self._written += 1
            log.warning(
                "%s %s in queue %s: %s",
                word,
                _shown(rq_id),
                queue,
                reason,
                extra={"event": f"untracked_{word}", "queue": queue},
            )

    def _write_count(self) -> None:
        if self._not_written:
            log.warning(
                "refused or dropped %d more ids that are not tracked",
                self._not_written,
                extra={"event": "untracked"},
            )
        self._not_written = 0


def _shown(rq_id: bytes) -> str:
    return ascii(rq_id.decode(errors="replace"))[1:-1][:100]


def _action(kind: Kind, *, only_tracked: bool) -> str:
    """Return an action of `remove_strangers.lua`, "" for none."""
    if kind is Kind.OURS:
        return "pop"
    if not only_tracked:
        return ""
    return {Kind.PLAIN: "refuse", Kind.GONE: "drop"}.get(kind, "")
