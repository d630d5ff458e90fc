"""Owners of namespaces and queues: each is fed by one database, and Redis holds the name of its installation.

Both are claimed by the first push, inside of the script that pushes, and checked by each later one. So two
databases that share a namespace or a queue by mistake never mix their jobs.
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
# Time after which a queue that another database feeds is reported again.
_REPORT_SECONDS = 600.0


class Owner(NamedTuple):
    """Database that feeds a namespace or a queue.

    Attributes:
        installation: UUID of the database, which no other one has; "" where an older version wrote none.
        label: Database and server, for people.
        recovers: True if deliveries may be missing from this Redis.
    """

    installation: str
    label: str
    recovers: bool = False

    def __str__(self) -> str:
        """Return label and installation, without characters that a terminal would obey."""
        printable = self.label.encode("ascii", "replace").decode()
        label = "".join(each if each.isprintable() else "?" for each in printable)[:_LONGEST_LABEL]
        return f"{label or 'unknown'} (installation {self.installation})"


def read_owner(text: bytes) -> Owner:
    """Read the owner of a namespace or a queue from its text in Redis."""
    match = _OWNER.fullmatch(text.decode(errors="replace"))
    if match is None:
        return Owner("", "")
    state, _, rest = match[2].partition(" ")
    if state in (_REMEMBERS, _RECOVERS):
        return Owner(match[1], rest, recovers=state == _RECOVERS)
    return Owner(match[1], match[2])


class Ownership:
    """Claims of one database on its namespace and its queues.

    Args:
        client: Connection to Redis.
        where: Its URL, for people.
        namespace: First part of our RQ ids.

    Attributes:
        installation: UUID of the database; "" for a client that only looks.
        label: Database and server, for people.
        key: Key of the namespace's mark.
    """

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
        """Ask Redis; if one of our keys holds the wrong type, delete it, and ask again.

        A mark that was deleted means that deliveries may be missing, and they are pushed again; queues are claimed
        again by the next push.

        Raises:
            redis.RedisError: As for `ask`.
        """
        try:
            return ask()
        except redis.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            wrong: Any = self._delete_wrong([self.key, QUEUE_OWNERS], ["string", "hash"])
            for key in wrong:
                text = "Redis key %s held something else, and is written again"
                log.error(text, key.decode(), extra={"event": "key_rebuilt"})
            return ask()

    def mark(self) -> None:
        """Write a mark, in our name, that is gone when this Redis has lost its memory.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace.
        """
        with reachable(self._where):
            arguments = [self.installation, self.label, self.key]
            owner: Any = self.mending(lambda: self._mark(args=arguments))
        self.require_ours(owner)

    def remembers(self) -> bool:
        """Return whether the mark is there, and no delivery is missing.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace.
        """
        with reachable(self._where):
            text: Any = self.mending(lambda: self._redis.get(self.key))
        owner = read_owner(text) if text is not None else None
        if owner is not None and self._is_foreign(owner):
            raise self._owned_by(owner)
        return owner is not None and not owner.recovers

    def fed_by_others(self, queues: Collection[str]) -> dict[str, Owner]:
        """Return those of these queues that another database feeds, with that database, and report them."""
        if not queues or not self.installation:
            return {}
        with reachable(self._where):
            texts: Any = self.mending(lambda: self._redis.hmget(QUEUE_OWNERS, list(queues)))
        named = {queue: read_owner(text) for queue, text in zip(queues, texts, strict=True) if text}
        others = {queue: owner for queue, owner in named.items() if self._is_foreign(owner)}
        self.report(others)
        return others

    def queues_of(self, installation: str) -> list[str]:
        """Return the queues that an installation feeds."""
        with reachable(self._where):
            texts: Any = self.mending(lambda: self._redis.hgetall(QUEUE_OWNERS))
        return [key.decode() for key, text in texts.items() if read_owner(text).installation == installation]

    def forget_queues(self, queues: Collection[str]) -> int:
        """Forget those of these queues that we feed and Redis holds nothing of; returns their number."""
        with reachable(self._where):
            forgotten: Any = self._forget(args=[self.installation, *queues])
        return int(forgotten)

    def take_over(self, installation: str) -> int:
        """Forget that an installation feeds the namespace and any queues; returns how many of these it fed."""
        with reachable(self._where):
            arguments = [installation, self.key, self.installation, self.label]
            forgotten: Any = self.mending(lambda: self._take_over(args=arguments))
        return int(forgotten)

    def require_ours(self, text: bytes) -> None:
        """Raise if a script answers with the text of another database that feeds the namespace.

        Raises:
            OwnedByAnotherError: It does.
        """
        if text:
            raise self._owned_by(read_owner(text))

    def report_misused(self, keys: Collection[str]) -> None:
        """Log keys of RQ's that hold something else than RQ's data, each at most once every ten minutes."""
        for key in filter(self._is_to_be_reported, keys):
            log.error(
                "Redis key %s does not hold RQ's data, so RQ's tools miss queues: rename that key",
                key,
                extra={"event": "key_misused"},
            )

    def report(self, others: Mapping[str, Owner]) -> None:
        """Log queues that another database feeds, each at most once every ten minutes."""
        for queue, owner in others.items():
            if not self._is_to_be_reported(queue):
                continue
            log.error(
                "queue %s is fed by another database, %s, so jobs of this one wait: name one of the two queues "
                "differently; or, if that database is gone, run `drain run --take-over %s` once",
                queue,
                owner,
                owner.installation,
                extra={"event": "foreign_queue", "queue": queue},
            )

    def _is_to_be_reported(self, name: str) -> bool:
        """Return True once every ten minutes."""
        now = monotonic()
        if now - self._reported_at.get(name, -_REPORT_SECONDS) < _REPORT_SECONDS:
            return False
        self._reported_at[name] = now
        return True

    def _is_foreign(self, owner: Owner) -> bool:
        return bool(self.installation) and owner.installation not in ("", self.installation)

    def _owned_by(self, owner: Owner) -> OwnedByAnotherError:
        return OwnedByAnotherError(
            f"namespace {self._namespace} on Redis at {self._where} is fed by another database, {owner}: set another "
            f"DRAIN_NAMESPACE for this one; or, if that one is gone, run "
            f"`drain run --take-over {owner.installation}` once"
        )
