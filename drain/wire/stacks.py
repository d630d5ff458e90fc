"""Stacks of running jobs: asked of the worker process that runs one, on its channel of RQ's commands.

The question names the job, the token of its claim and a word; the answer goes into a list that has this word in its
key, and lives for half a minute. The process listens on that channel in any case, so that it pays for nothing while
nobody asks. A question is no call: there is nothing in it but two numbers and a word of a fixed form.
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

# Command of the channel.
STACK = "drain-stack"
# Lifetime of an answer.
_KEPT_SECONDS = 30
_WORD = re.compile("[0-9a-f]{32}")
_MOST = 2**63 - 1
# Upper bound of the characters of an answer.
_LONGEST_ANSWER = 500_000
# Length of one wait for the answer, shorter than the timeout of the socket.
_WAIT_SECONDS = 2.0


class StackQuestion(NamedTuple):
    """Question for the stack of a job.

    Attributes:
        job_id: The job.
        token: Fencing token of the claim under which it must run.
        word: Random word, which the key of the answer has.
    """

    job_id: int
    token: int
    word: str


class StackQuestions(RedisConnection):
    """Asks worker processes for the stacks of their jobs. Errors are those of `RedisConnection`.

    Args:
        redis_url: URL of the Redis.
        namespace: First part of our RQ ids.
    """

    def __init__(self, redis_url: str, namespace: str) -> None:
        super().__init__(redis_url)
        self._namespace = namespace

    def publish(self, worker_name: str, job_id: int, token: int) -> tuple[str, int]:
        """Ask a worker; returns the word of the question, and the number of processes that have heard it."""
        word = secrets.token_hex(16)
        text = json.dumps({"command": STACK, "job_id": job_id, "token": token, "word": word})
        with reachable(self.where):
            heard: Any = self._redis.publish(commands_channel(worker_name), text)
        return word, int(heard)

    def wait(self, word: str, seconds: float) -> dict[str, Any] | None:
        """Wait for the answer; None if none comes in time, or one that cannot be read."""
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
    """Read a command of the channel; None if it does not have the form of a question."""
    job_id, token, word = payload.get("job_id"), payload.get("token"), payload.get("word")
    if not all(type(number) is int and 0 <= number <= _MOST for number in (job_id, token)):
        return None
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        return None
    return StackQuestion(int(job_id or 0), int(token or 0), word)


def write_answer(
    client: redis.Redis, namespace: str, question: StackQuestion, answer: Mapping[str, Any]
) -> None:
    """Write the answer to a question.

    Raises:
        redis.RedisError: Redis does not take it.
    """
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
