"""Answers about where a job is."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any

import redis

from drain.config import process_name
from drain.wire.stacks import StackQuestion, read_question, write_answer
from drain.workers.context.current import Attempt
from drain.workers.process.inbox import Inbox
from drain.workers.process.jobs import PendingJob

log = logging.getLogger(__name__)

# Per second: a flood of questions must not slow the jobs.
_MOST_ANSWERS = 20
_PERIOD_SECONDS = 1.0


class StackAnswers:
    """Answers questions for stacks, in the thread of RQ's commands."""

    def __init__(self, inbox: Inbox, namespace: str) -> None:
        self._inbox = inbox
        self._namespace = namespace
        self._answered_at: deque[float] = deque(maxlen=_MOST_ANSWERS)

    def answer(self, client: redis.Redis, payload: Mapping[str, Any]) -> None:
        """Answer a readable question about a claim of this process.

        Raises:
            redis.RedisError: Redis does not take the answer.
        """
        question = read_question(payload)
        if question is None:
            log.warning(
                "a request for a job's stack cannot be read: %.300r",
                payload,
                extra={"event": "stack_refused"},
            )
            return
        now, before = monotonic(), self._answered_at
        if len(before) == before.maxlen and now - before[0] < _PERIOD_SECONDS:
            return
        before.append(now)
        # Always reply, so that the caller does not time out.
        write_answer(client, self._namespace, question, self._find(question))

    def _find(self, question: StackQuestion) -> dict[str, Any]:
        asked = (question.job_id, question.token)
        answer: dict[str, Any] = {"process": process_name(), "state": "unknown"}
        for attempt in self._attempts():
            if (attempt.claim.id, attempt.claim.fencing_token) == asked:
                return answer | _describe(attempt)
        return answer

    def _attempts(self) -> Iterator[Attempt]:
        current = self._inbox.running.current
        if isinstance(current, PendingJob) and current.attempt is not None:
            yield current.attempt
        yield from self._inbox.attempts()


def _describe(attempt: Attempt) -> dict[str, Any]:
    # The stack may change while read.
    try:
        stack = attempt.interruption.frames()
    except Exception as error:  # noqa: BLE001
        log.debug(
            "the stack of job %d cannot be read: %r",
            attempt.claim.id,
            error,
            extra={"event": "stack_unreadable", "job_id": attempt.claim.id},
        )
        return {"state": "silent", "place": ""}
    if attempt.has_ended:
        return {"state": "ended"}
    if stack is None:
        return {"state": "waiting"}
    if stack.frames is None:
        return {"state": "silent", "place": stack.place}
    return {"state": "running", "place": stack.place, "frames": stack.frames, "beside": stack.beside}
