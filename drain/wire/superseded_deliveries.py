"""Replaced deliveries: RQ's verdicts and dependents."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

import redis

from drain.wire import scripts
from drain.wire.keys import dependents_key, failed_key, held_dependents_key, job_key, results_key

# RQ's error for an unreadable call.
_UNREADABLE = b"DeserializationError"
_LONGEST_TRACEBACK = 1_000_000


class RQVerdict(StrEnum):
    """RQ's verdict on a lost delivery: STOPPED by an operator, UNREADABLE to a worker."""

    UNKNOWN = "unknown"
    STOPPED = "stopped"
    UNREADABLE = "unreadable"


class ReplacedDelivery(NamedTuple):
    """Replaced delivery."""

    rq_id: str
    queue: str


class EarlierDeliveries:
    """Earlier deliveries in RQ's data; redis errors propagate."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._read_status = client.register_script(scripts.load("read_status"))
        self._move_dependents = client.register_script(scripts.load("move_dependents"))

    def verdicts(self, rq_ids: Sequence[str]) -> list[RQVerdict]:
        """Return RQ's verdicts."""
        answer: Any = self._read_status(args=list(rq_ids))
        pairs = iter(answer)
        return [_verdict(status, traceback) for status, traceback in zip(pairs, pairs, strict=True)]

    def move_dependents(self, pairs: Sequence[tuple[str, str]]) -> int:
        """Move RQ dependents to later deliveries."""
        moved: Any = self._move_dependents(args=[rq_id for pair in pairs for rq_id in pair])
        return int(moved)

    def forget(self, replaced: Sequence[ReplacedDelivery]) -> None:
        """Delete hashes, results and failed-registry entries."""
        failed: dict[str, list[str]] = {}
        for rq_id, queue in replaced:
            failed.setdefault(failed_key(queue), []).append(rq_id)
        keys = [key for each in replaced for key in (job_key(each.rq_id), results_key(each.rq_id))]
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.unlink(*keys)
            for registry, rq_ids in failed.items():
                pipeline.zrem(registry, *rq_ids)
            # Ignores a registry of another type.
            pipeline.execute(raise_on_error=False)


def hold_dependents(client: redis.Redis, rq_id: str) -> None:
    """Keep RQ from releasing dependents of a job that will run again; redis errors propagate."""
    # The key rarely exists.
    with suppress(redis.ResponseError):
        client.rename(dependents_key(rq_id), held_dependents_key(rq_id))


def _verdict(status: bytes, traceback: bytes) -> RQVerdict:
    if status == b"stopped":
        return RQVerdict.STOPPED
    if traceback and _UNREADABLE in _unpacked(traceback):
        return RQVerdict.UNREADABLE
    return RQVerdict.UNKNOWN


def _unpacked(traceback: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(base64.b64decode(traceback), _LONGEST_TRACEBACK)
    except (ValueError, zlib.error):
        return b""
