"""Owners: one database feeds each namespace and queue.

The pushing script claims and checks both, so databases that share one by mistake never mix jobs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import redis

from drain.errors import OwnedByAnotherError
from drain.wire import scripts
from drain.wire.connection import reachable
from drain.wire.keys import QUEUE_OWNERS, namespace_key

log = logging.getLogger(__name__)

_REMEMBERS, _RECOVERS = "remembers", "recovers"
T = TypeVar("T")

_OWNER = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}) (.*)", re.DOTALL)
_LONGEST_LABEL = 150
_REPORT_SECONDS = 600.0


class Owner(NamedTuple):
    """Database that feeds a namespace or queue.

    Attributes:
        installation: UUID; "" from older versions.
        label: Database and server, for display.
        recovers: Deliveries may be missing from this Redis.
    """

    installation: str
    label: str
    recovers: bool = False

    def __str__(self) -> str:
        """Return label and installation, without terminal controls."""
        printable = self.label.encode("ascii", "replace").decode()
        label = "".join(each if each.isprintable() else "?" for each in printable)[:_LONGEST_LABEL]
        return f"{label or 'unknown'} (installation {self.installation})"


def read_owner(text: bytes) -> Owner:
    """Parse an owner from Redis."""
    match = _OWNER.fullmatch(text.decode(errors="replace"))
    if match is None:
        return Owner("", "")
    state, _, rest = match[2].partition(" ")
    if state in (_REMEMBERS, _RECOVERS):
        return Owner(match[1], rest, recovers=state == _RECOVERS)
    return Owner(match[1], match[2])


class Ownership:
    """One database's claims; `installation` is "" for readers."""

    def __init__(self, client: redis.Redis, where: str, namespace: str) -> None:
        self.installation = self.label = ""
        self.key = namespace_key(namespace)
        self._redis = client
        self._where = where
        self._namespace = namespace
        self._mark = client.register_script(scripts.load("owners", "mark"))
        self._take_over = client.register_script(scripts.load("owners", "take_over"))
        self._forget = client.register_script(scripts.load("owners", "forget_queues"))
        self._delete_wrong = client.register_script(scripts.load("delete_wrong"))
        self._reported_at: dict[str, float] = {}

    def mending(self, ask: Callable[[], T]) -> T:
        """Call `ask`; on a wrong type, delete our key and repeat.

        A deleted mark causes redelivery; the next push claims queues again.
        """
        try:
            return ask()
        except redis.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            wrong: Any = self._delete_wrong([self.key, QUEUE_OWNERS], ["string", "hash"])
            for key in wrong:
                text = "Redis key %s had the wrong type and is rewritten"
                log.error(text, key.decode(), extra={"event": "key_rebuilt"})
            return ask()

    def mark(self) -> None:
        """Mark the namespace as ours, until Redis loses its data."""
        with reachable(self._where):
            arguments = [self.installation, self.label, self.key]
            owner: Any = self.mending(lambda: self._mark(args=arguments))
        self.require_ours(owner)

    def remembers(self) -> bool:
        """Return whether the mark exists and no delivery is missing."""
        with reachable(self._where):
            text: Any = self.mending(lambda: self._redis.get(self.key))
        owner = read_owner(text) if text is not None else None
        if owner is not None and self._is_foreign(owner):
            raise self._owned_by(owner)
        return owner is not None and not owner.recovers

    def fed_by_others(self, queues: Collection[str]) -> dict[str, Owner]:
        """Return and report queues fed by others."""
        if not queues or not self.installation:
            return {}
        with reachable(self._where):
            texts: Any = self.mending(lambda: self._redis.hmget(QUEUE_OWNERS, list(queues)))
        named = {queue: read_owner(text) for queue, text in zip(queues, texts, strict=True) if text}
        others = {queue: owner for queue, owner in named.items() if self._is_foreign(owner)}
        self.report(others)
        return others

    def queues_of(self, installation: str) -> list[str]:
        """Return an installation's queues."""
        with reachable(self._where):
            texts: Any = self.mending(lambda: self._redis.hgetall(QUEUE_OWNERS))
        return [key.decode() for key, text in texts.items() if read_owner(text).installation == installation]

    def forget_queues(self, queues: Collection[str]) -> int:
        """Release our empty queues."""
        with reachable(self._where):
            forgotten: Any = self._forget(args=[self.installation, *queues])
        return int(forgotten)

    def take_over(self, installation: str) -> int:
        """Release an installation's namespace and queues; returns how many."""
        with reachable(self._where):
            arguments = [installation, self.key, self.installation, self.label]
            forgotten: Any = self.mending(lambda: self._take_over(args=arguments))
        return int(forgotten)

    def require_ours(self, text: bytes) -> None:
        """Raise OwnedByAnotherError if a reply names another owner."""
        if text:
            raise self._owned_by(read_owner(text))

    def report_misused(self, keys: Collection[str]) -> None:
        """Log misused RQ keys, every ten minutes."""
        for key in filter(self._is_to_be_reported, keys):
            log.error(
                "Redis key %s does not hold RQ's data, so RQ's tools miss queues: rename that key",
                key,
                extra={"event": "key_misused"},
            )

    def report(self, others: Mapping[str, Owner]) -> None:
        """Log others' queues, every ten minutes."""
        for queue, owner in others.items():
            if not self._is_to_be_reported(queue):
                continue
            log.error(
                "queue %s belongs to another database, %s, so this database's jobs wait: rename one of the queues, "
                "or, if that database no longer exists, run `drain run --take-over %s` once",
                queue,
                owner,
                owner.installation,
                extra={"event": "foreign_queue", "queue": queue},
            )

    def _is_to_be_reported(self, name: str) -> bool:
        now = monotonic()
        if now - self._reported_at.get(name, -_REPORT_SECONDS) < _REPORT_SECONDS:
            return False
        self._reported_at[name] = now
        return True

    def _is_foreign(self, owner: Owner) -> bool:
        return bool(self.installation) and owner.installation not in ("", self.installation)

    def _owned_by(self, owner: Owner) -> OwnedByAnotherError:
        return OwnedByAnotherError(
            f"namespace {self._namespace} on Redis at {self._where} belongs to another database, {owner}: set a "
            f"different DRAIN_NAMESPACE, or, if that database no longer exists, run "
            f"`drain run --take-over {owner.installation}` once"
        )
