"""Stacks of running jobs, requested on the channel of RQ's commands.

Workers listen there anyway.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import redis

from drain.wire.connection import RedisConnection, reachable
from drain.wire.keys import commands_channel, stack_key

STACK = "drain-stack"
_KEPT_SECONDS = 30
_WORD = re.compile("[0-9a-f]{32}")
_MOST = 2**63 - 1
_LONGEST_ANSWER = 500_000
# Less than the socket timeout.
_WAIT_SECONDS = 2.0


class StackQuestion(NamedTuple):
    """Request for a job's stack; `word` names the answer's key."""

    job_id: int
    token: int
    word: str


class StackQuestions(RedisConnection):
    """Requests stacks from worker processes."""

    def __init__(self, redis_url: str, namespace: str) -> None:
        super().__init__(redis_url)
        self._namespace = namespace

    def publish(self, worker_name: str, job_id: int, token: int) -> tuple[str, int]:
        """Ask a worker; returns the word and the number of receivers."""
        word = secrets.token_hex(16)
        text = json.dumps({"command": STACK, "job_id": job_id, "token": token, "word": word})
        with reachable(self.where):
            heard: Any = self._redis.publish(commands_channel(worker_name), text)
        return word, int(heard)

    def wait(self, word: str, seconds: float) -> dict[str, Any] | None:
        """Wait for a valid answer; None on timeout."""
        key, left = stack_key(self._namespace, word), seconds
        while left > 0:
            patience = min(left, _WAIT_SECONDS)
            with reachable(self.where):
                found: Any = self._redis.blpop([key], timeout=patience)
            if found is not None:
                return _read(found[1])
            left -= patience
        return None


def read_question(payload: Mapping[str, Any]) -> StackQuestion | None:
    """Parse a question; None if invalid."""
    job_id, token, word = payload.get("job_id"), payload.get("token"), payload.get("word")
    if not all(type(number) is int and 0 <= number <= _MOST for number in (job_id, token)):
        return None
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        return None
    return StackQuestion(int(job_id or 0), int(token or 0), word)


def write_answer(
    client: redis.Redis, namespace: str, question: StackQuestion, answer: Mapping[str, Any]
) -> None:
    """Write the answer; redis errors propagate."""
    key = stack_key(namespace, question.word)
    with client.pipeline() as pipeline:
        pipeline.rpush(key, json.dumps(answer)[:_LONGEST_ANSWER])
        pipeline.expire(key, _KEPT_SECONDS)
        pipeline.execute()


def _read(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text[:_LONGEST_ANSWER])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
