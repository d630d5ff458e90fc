"""Popping ids in batches; other ids are classified first."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis

from drain.errors import UnavailableError
from drain.wire import scripts
from drain.wire.calls import Kind, classify_ids
from drain.wire.connection import reachable
from drain.wire.foreign_jobs import Strangers
from drain.wire.ids import AwaitedId, PoppedId, to_bytes, to_text, tracked_id_pattern
from drain.wire.keys import queue_of
from drain.wire.moves import ListMoves
from drain.wire.sources import SourceLists

# Half a second's worth.
_MOST_ROUNDS = 50
_NONE = AwaitedId("", b"", is_suspended=False)
# As in `pop.lua`.
_POPPED, _SUSPENDED, _TO_BE_CLASSIFIED = range(3)


class Popper:
    """Pops ids without waiting; classifies none without `installation`."""

    def __init__(
        self,
        client: redis.Redis,
        where: str,
        namespace: str,
        *,
        sources: SourceLists,
        moves: ListMoves,
        strangers: Strangers,
        installation: Callable[[], str] | None,
    ) -> None:
        self.more_to_classify = self.leaves_plain = False
        self._redis = client
        self._where = where
        self._prefix = f"{namespace}-"
        self._tracked_id = tracked_id_pattern(namespace)
        self._sources = sources
        self._moves = moves
        self._strangers = strangers
        self._installation = installation
        self._pop = client.register_script(scripts.load("pop"))

    def take(self, awaited: AwaitedId) -> PoppedId | None:
        """Accept an id if tracked and RQ was not suspended."""
        if awaited.is_suspended or self._tracked_id.fullmatch(awaited.rq_id) is None:
            return None
        taken = self._popped_id(awaited.rq_id, queue_of(awaited.key))
        self._sources.popped_from(taken.queue)
        return taken

    def pop(
        self,
        most: int,
        popped: AwaitedId | None,
        taken: AwaitedId | None = None,
        *,
        tracked: bool = True,
        plain: bool = True,
    ) -> list[PoppedId] | None:
        """Pop up to `most` ids, `popped` first; None while RQ is suspended."""
        queue = ""
        for _ in range(_MOST_ROUNDS):
            modes = self._sources.modes(tracked=tracked, plain=plain)
            state, lists = self._run_pop(most, modes, popped, taken)
            queue = queue_of(lists[0].decode()) if lists else queue
            popped = taken = None
            if state == _SUSPENDED:
                return None
            unread = state == _TO_BE_CLASSIFIED
            found = self._clear_head(queue) if unread else self._checked(self._read(lists))
            if found:
                self._sources.popped_from(found[-1].queue)
            if found or self._installation is None or not lists:
                return found
        self._sources.skip(queue)
        self.more_to_classify = True
        return []

    def _run_pop(
        self, most: int, modes: str, popped: AwaitedId | None, taken: AwaitedId | None
    ) -> tuple[int, list[Any]]:
        key, rq_id, _ = popped or _NONE
        taken_from, taken_id, _ = taken or _NONE
        arguments: list[Any] = [most, self._prefix, rq_id, key, modes, taken_id, taken_from]
        with reachable(self._where):
            answer: Any = self._pop(self._sources.keys, arguments)
        state, lists, no_lists, left, dropped = answer
        self._sources.report_no_lists([key.decode() for key in no_lists])
        pairs = iter(dropped)
        for key_of_dropped, beginning in zip(pairs, pairs, strict=True):
            self._strangers.report_too_long(queue_of(key_of_dropped.decode()), beginning)
        self.more_to_classify, self.leaves_plain = False, bool(left)
        return state, lists

    def _read(self, lists: list[Any]) -> list[PoppedId]:
        found: list[PoppedId] = []
        pairs = iter(lists)
        for key, rq_ids in zip(pairs, pairs, strict=True):
            queue = queue_of(key.decode())
            found += [self._popped_id(rq_id, queue) for rq_id in rq_ids]
        return found

    def _popped_id(self, rq_id: bytes, queue: str) -> PoppedId:
        match = self._tracked_id.fullmatch(rq_id)
        # `to_text` inlined: runs per job.
        text = rq_id.decode(errors="surrogateescape")
        if match is None:
            return PoppedId(text, queue, None, 0)
        return PoppedId(text, queue, int(match[1]), int(match[2]))

    def _checked(self, found: list[PoppedId]) -> list[PoppedId]:
        if self._installation is None or len(found) != 1 or found[0].job_id is not None:
            return found
        (alone,) = found
        try:
            with reachable(self._where):
                (job,) = classify_ids(self._redis, [to_bytes(alone.rq_id)], "")
            if job.kind in (Kind.PLAIN, Kind.GONE):
                return found
            is_ours = job.installation == self._installation()
        except UnavailableError:
            with suppress(UnavailableError):
                self._moves.give_back([(alone.queue, alone.rq_id)])
            raise
        if is_ours:
            self._moves.discard(alone)
            return [_under_older_namespace(alone.queue, to_bytes(alone.rq_id), job.job_id)]
        self._moves.give_back([(alone.queue, alone.rq_id)])
        return self._clear_head(alone.queue)

    def _clear_head(self, queue: str) -> list[PoppedId]:
        installation = self._installation() if self._installation is not None else ""
        with reachable(self._where):
            found, is_foreign = self._strangers.clear_head(
                queue, self._tracked_id, installation, only_tracked=self._sources.takes_only_tracked(queue)
            )
        if is_foreign:
            self._sources.skip(queue)
        return [_under_older_namespace(queue, rq_id, job_id) for rq_id, job_id in found]


def _under_older_namespace(queue: str, rq_id: bytes, job_id: int) -> PoppedId:
    delivery = re.search(rb"-(\d{1,18})$", rq_id)
    return PoppedId(to_text(rq_id), queue, job_id, int(delivery[1]) if delivery else 0)
